// Renders the golden chat cases with @huggingface/jinja and reports where it and Python's Jinja2 differ.
// usage: node check.mjs FOLDER   (the folder in which the package is installed)
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";

const require = createRequire(path.resolve(process.argv[2]) + "/");
const { Template } = require("@huggingface/jinja");
const here = path.join(path.dirname(new URL(import.meta.url).pathname), "../../tests/data/text");
const data = JSON.parse(fs.readFileSync(path.join(here, "chat_cases.json"), "utf8"));

// The engine formats today's date; the goldens have a fixed one.
const [year, month, day, hour, minute, second] = data.now;
const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...args) {
    if (args.length === 0) super(year, month - 1, day, hour, minute, second);
    else super(...args);
  }
};

let same = 0;
let errors = 0;
const different = [];
for (const c of data.cases) {
  const template = new Template(fs.readFileSync(path.join(here, "chat_templates", c.template + ".jinja"), "utf8"));
  let got;
  try {
    got = template.render({
      messages: data.conversations[c.conversation],
      tools: c.tools ? data.tools[c.tools] : null,
      documents: null,
      add_generation_prompt: c.prompt,
      ...data.tokens[c.template],
      ...c.extra,
    });
  } catch (e) {
    got = null;
    if (c.expect === undefined) errors += 1;
    else different.push([c, String(e)]);
    continue;
  }
  if (got === c.expect) same += 1;
  else different.push([c, got]);
}
console.log(`${same} equal texts, ${errors} equal errors, ${different.length} different`);
for (const [c, got] of different) {
  console.log(JSON.stringify({ ...c, expect: undefined }));
  console.log("  python:", JSON.stringify(c.expect ?? c.raised ?? c.error));
  console.log("  node:  ", JSON.stringify(got));
}
