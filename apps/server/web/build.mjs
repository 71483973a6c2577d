// One file without references: scripts and styles are bundled, made small, and put into the page.
import fs from "node:fs";
import {build} from "esbuild";

const common = {bundle: true, minify: true, write: false, target: "es2022"};
const script = (await build({...common, entryPoints: ["src/main.js"], format: "iife"})).outputFiles[0].text.trim();
const style = (await build({...common, entryPoints: ["src/style.css"]})).outputFiles[0].text.trim();
const page = fs.readFileSync("src/index.html", "utf8").replace(/\n\s*/g, "\n");
fs.mkdirSync("dist", {recursive: true});
fs.writeFileSync("dist/index.html", page.replace("/*style*/", () => style).replace("/*script*/", () => script));
console.log(`dist/index.html: ${fs.statSync("dist/index.html").size} bytes`);
