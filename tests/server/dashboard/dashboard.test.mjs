// The page at / in a headless browser: a chat that streams, the map that lives, a phone, a keyboard, and no request to
// anywhere else. CHROMIUM names the browser; SCREENSHOTS a folder for pictures.
import assert from "node:assert/strict";
import {after, before, test} from "node:test";
import puppeteer from "puppeteer-core";
import {Server, settled} from "../e2e/server.mjs";

let server, browser;
const elsewhere = [];

async function open(path = "/", view = {width: 1280, height: 850}) {
  const page = await browser.newPage();
  await page.setViewport(view);
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && page.errors.push(message.text()));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.host !== `127.0.0.1:${server.port}`) elsewhere.push(request.url());
  });
  await page.goto(server.url + path);
  await page.$eval("#temperature", (e) => (e.value = "0"));  // else an answer may end before it is looked at
  return page;
}
const tile = (page, name) => page.$$eval("#tiles div", (boxes, name) =>
  boxes.find((b) => b.querySelector("dt").textContent === name)?.querySelector("dd").textContent, name);
const shot = async (page, name) => process.env.SCREENSHOTS && await page.screenshot({path: `${process.env.SCREENSHOTS}/${name}.png`});

before(async () => {
  server = await Server.start(["--expert-memory", "25%", "--temp", "0"]);
  browser = await puppeteer.launch({executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, args: ["--no-sandbox"]});
});
after(async () => {
  await browser?.close();
  assert.equal(await server.stop(), 0);
  assert.deepEqual(elsewhere, []);
});

test("a chat streams and the map shows it", async () => {
  const page = await open();
  await page.waitForFunction(() => document.querySelector("#status").textContent === "ready");
  assert.equal(await page.$eval("#model", (e) => e.textContent), "demo-Q5_K_M.gguf");
  await page.$eval("#tokens", (e) => (e.value = "160"));
  await page.type("#text", "Continue: the cat went to the sea");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => (document.querySelector(".assistant")?.textContent.length ?? 0) > 20);
  await page.waitForFunction(() => /160 tokens, .* tok\/s/.test(document.querySelector(".assistant .speed").textContent));
  assert.equal(await page.$eval(".user", (e) => e.textContent), "Continue: the cat went to the sea");
  await page.waitForFunction(() => document.querySelector("#map").width > 100);
  // Some experts are near and some are not, and the map has a colour for each.
  const colours = await page.$eval("#map", (canvas) => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(Array.from({length: data.length / 4}, (_, i) => data.slice(4 * i, 4 * i + 3).join())).size;
  });
  assert.ok(colours >= 3, `${colours} colours`);
  for (const name of ["generated", "hit rate", "stalled", "distance S", "queue", "running", "KV cache", "expert reads", "recall", "disk busy", "disk speed", "within SLA"])
    assert.ok(await tile(page, name), name);
  await page.waitForFunction(() => /%/.test([...document.querySelectorAll("#tiles div")].find((b) => b.textContent.startsWith("hit rate")).textContent));
  const shown = (name, form) => page.waitForFunction((name, form) => {
    const box = [...document.querySelectorAll("#tiles div")].find((b) => b.querySelector("dt").textContent === name);
    return new RegExp(form).test(box?.querySelector("dd").textContent);
  }, {}, name, form);
  await shown("distance S", "^[1-9]");
  await shown("disk speed", "^[0-9.]+ [kMG]B/s$");
  await shown("within SLA", "^[0-9.]+ %$");
  await shot(page, "dashboard");
  assert.deepEqual(page.errors, []);
  await page.close();
});

test("Escape stops an answer, and its slot is free", async () => {
  const page = await open();
  await page.$eval("#tokens", (e) => (e.value = "1900"));
  await page.type("#text", "Continue: a long story");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => (document.querySelector(".assistant")?.textContent.length ?? 0) > 10);
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.querySelector(".assistant .speed").textContent === "stopped");
  await settled(server);
  await page.close();
});

test("by keyboard alone", async () => {
  const page = await open();
  await page.waitForFunction(() => document.querySelector("#map").width > 100);
  const seen = new Set();
  for (let i = 0; i < 12; ++i) {
    await page.keyboard.press("Tab");
    seen.add(await page.evaluate(() => document.activeElement.id));
  }
  for (const id of ["text", "send", "clear", "temperature", "map"]) assert.ok(seen.has(id), `${id} in ${[...seen]}`);
  await page.focus("#map");
  await page.keyboard.press("ArrowRight");
  assert.match(await page.$eval("#cell", (e) => e.textContent), /^Layer 0, expert 0: (near|on disk|in flight), used by \d+ tokens$/);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  assert.match(await page.$eval("#cell", (e) => e.textContent), /^Layer 1, expert 1:/);
  await page.close();
});

test("on a phone nothing is cut off", async () => {
  const page = await open("/", {width: 360, height: 740, isMobile: true, hasTouch: true, deviceScaleFactor: 2});
  await page.waitForFunction(() => document.querySelector("#map").width > 100);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  const small = await page.$$eval("button:not([hidden])", (all) => all.filter((b) => b.offsetHeight > 0 && b.offsetHeight < 40).map((b) => b.id));
  assert.deepEqual(small, []);
  await shot(page, "phone");
  await page.close();
});

test("a key is asked for where there is one", async () => {
  const guarded = await Server.start(["--api-key", "secret"]);
  try {
    const page = await browser.newPage();
    await page.goto(guarded.url);
    await page.waitForSelector("#key-form:not([hidden])");
    await page.type("#key", "secret");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#status").textContent === "ready");
    await page.close();
  } finally {
    assert.equal(await guarded.stop(), 0);
  }
});
