// The dashboard of a running demo in a browser: Debian's Chromium, and axe-core for whether
// everybody can use it. With SCREENSHOTS=DIR it takes pictures.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, test } from "node:test";
import { chromium } from "playwright-core";
import { Demo } from "./demo.js";

const patience = 60_000;
const service = "gue-192.0.2.7-http";
const pages = ["#/", "#/services", "#/services/" + service, "#/packets", "#/network", "#/events", "#/explain"];
const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

describe("the dashboard", () => {
  const demo = new Demo(process.env.WEIR ?? "../bin/weir");
  const complaints = [];
  let browser, page;

  before(async () => {
    await demo.start();
    browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
    page = await newPage({ width: 1280, height: 900 });
  });
  after(async () => {
    await browser?.close();
    await demo.stop();
  });
  beforeEach(() => complaints.splice(0));

  async function newPage(viewport, options = {}) {
    const page = await browser.newPage({ viewport, ...options });
    page.setDefaultTimeout(patience);
    page.on("console", (m) => ["error", "warning"].includes(m.type()) && complaints.push(m.text()));
    page.on("pageerror", (error) => complaints.push(error.message));
    page.on("request", (r) => r.url().startsWith(demo.url) || complaints.push(`it asks for ${r.url()}`));
    return page;
  }

  async function show(hash, on = page) {
    await on.goto(demo.url + hash);
    await on.locator("#link.fresh").waitFor();
  }

  async function picture(name, on = page) {
    if (process.env.SCREENSHOTS) await on.screenshot({ path: join(process.env.SCREENSHOTS, name + ".png") });
  }

  const quiet = () => assert.deepEqual(complaints, []);

  test("shows traffic live", async () => {
    await show("#/");
    await page.locator("#verdict.good").waitFor();
    const packets = page.locator(".tiles > div").filter({ has: page.locator("dt", { hasText: /^Packets$/ }) }).locator(".value");
    await page.waitForFunction((e) => parseFloat(e.textContent) > 0, await packets.elementHandle());
    const first = await page.locator("#link").textContent();
    await page.waitForFunction(([e, text]) => e.textContent !== text, [await page.locator("#link").elementHandle(), first]);
    quiet();
  });

  test("sorts and filters services, and leads to one", async () => {
    await show("#/services");
    await page.locator("tbody tr").nth(27).waitFor(); // 14 VIPs with two services each
    await page.keyboard.press("/");
    await page.keyboard.type("gue http 192.0.2.7");
    await page.locator("tbody tr").first().waitFor();
    assert.equal(await page.locator("tbody tr").count(), 1);
    await page.locator("main input[type=search]").fill("");
    await page.getByRole("button", { name: "Packets/s" }).click();
    assert.equal(await page.locator("th[aria-sort=descending]").textContent(), "Packets/s");
    const rates = await page.locator("tbody td[data-title='Packets/s']").allTextContents();
    assert.ok(parseFloat(rates[0]) > 0, `the busiest service has ${rates[0]}`);
    await page.getByRole("link", { name: service, exact: true }).click();
    await page.getByRole("heading", { level: 1, name: service }).waitFor();
    quiet();
  });

  test("shows backends beside their weights, and the ring", async () => {
    await show("#/services/" + service);
    await page.getByRole("table", { name: "Backends" }).locator("tbody tr").nth(2).waitFor();
    const owners = page.getByRole("table", { name: "Who owns the slots" }).locator("tbody tr");
    await owners.nth(2).waitFor();
    const slots = (await owners.locator("td[data-title=Slots]").allTextContents()).map(Number);
    assert.equal(slots.reduce((a, b) => a + b), 1021);
    await page.mouse.move(0, 0); // who points at a backend sees its slots alone
    // Its colours are as many as its owners.
    const colours = await page.locator("canvas[role=img]").evaluate((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Set();
      for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) seen.add(data.slice(at, at + 3).join());
      return seen.size;
    });
    assert.equal(colours, 3);
    const legend = await page.locator(".ring .swatch").evaluateAll((list) => new Set(list.map((e) => e.style.background)).size);
    assert.equal(legend, 3, "the table beside it says whose each colour is");
    quiet();
  });

  test("shows a backend's death, and why", async (t) => {
    await show("#/");
    await page.getByText("No backend is down.").waitFor();
    const begin = Date.now();
    demo.plug("backend1", false);
    await page.locator("main table tbody tr", { hasText: "backend1" }).first().waitFor();
    t.diagnostic(`a backend's death appears after ${Date.now() - begin} ms`);
    await page.locator("#verdict.bad").waitFor();
    await page.locator(".findings li", { hasText: "down" }).first().waitFor();
    await page.locator(".events li", { hasText: "is down" }).first().waitFor();
    await page.waitForFunction(() => [...document.querySelectorAll("td[data-title=Why]")].every((td) => td.textContent !== ""));
    await picture("down");
    demo.plug("backend1", true);
    await page.getByText("No backend is down.").waitFor();
    quiet();
  });

  test("explains a packet as weir explain does, and says what is wrong with a question", async () => {
    const directory = mkdtempSync(join(tmpdir(), "weir-"));
    const set = join(directory, "set.yaml");
    writeFileSync(set, "services:\n- {name: few, vip: 192.0.2.200, protocol: udp, port: 53, mode: nat, source-ranges: [10.0.0.0/24, 10.0.0.0/8],\n" +
      "  backends: [{name: a, address: 10.0.1.1}, {name: b, address: 10.0.1.2}]}\n");
    demo.ask("apply", "-f", set, "--measure", "0s");
    await show("#/explain");
    for (const [source, destination, protocol, flags, says] of [
      ["10.0.0.2:5555", "192.0.2.7:80", "tcp", "syn", service],
      ["10.0.0.2:5555", "192.0.2.7:80", "tcp", "ack", "forward_gue"],
      ["10.0.0.2:5555", "192.0.2.200:53", "udp", "", "in source range 10.0.0.0/24, one of 2"],
      ["198.51.100.7:5555", "192.0.2.200:53", "udp", "", "in none of the service's source ranges (2)"],
      ["10.0.0.2", "192.0.2.7", "icmp", "", "outcome"],
    ]) {
      await page.getByLabel("Source").fill(source);
      await page.getByLabel("Destination").fill(destination);
      await page.getByLabel("Protocol").selectOption(protocol);
      if (flags !== "") await page.getByLabel("TCP flags").selectOption(flags);
      const answered = page.waitForResponse("**/v1/explain");
      await page.getByLabel("Destination").press("Enter");
      await answered;
      // As tables are written: a line for each decision, none left out.
      const wanted = JSON.parse(demo.ask("explain", source, `${destination}/${protocol}`, "-o", "json", ...(flags === "" ? [] : ["--flags", flags]))).steps;
      await page.waitForFunction(([count]) => document.querySelectorAll(".steps dd").length === count, [wanted.length]);
      const shown = await page.locator(".steps").evaluate((list) => {
        let step = "";
        return [...list.children].flatMap((e) => (e.tagName === "DT" ? ((step = e.textContent), []) : [{ step, says: e.textContent }]));
      });
      assert.deepEqual(shown, wanted);
      assert.ok(wanted.some((s) => `${s.step} ${s.says}`.includes(says)), `${JSON.stringify(wanted)} does not say ${says}`);
      // A header more of a packet is below the one before, beside no name of its own.
      const lefts = await page.locator(".steps dd").evaluateAll((all) => all.map((e) => Math.round(e.getBoundingClientRect().left)));
      assert.equal(new Set(lefts).size, 1, `decisions begin at ${lefts}`);
      if (flags === "syn") await picture("explain");
    }
    quiet();
    assert.notEqual(await page.locator("#vips option").count(), 0, "VIPs are offered");
    await page.getByLabel("Destination").fill("nowhere");
    await page.getByRole("button", { name: "Explain" }).click();
    await page.locator("section[aria-label=Answer] .finding.bad").waitFor();
    complaints.splice(0); // the browser notes the answer's status
    writeFileSync(set, "services: []\n");
    demo.ask("apply", "-f", set, "--measure", "0s");
    rmSync(directory, { recursive: true });
  });

  for (const scheme of ["light", "dark"]) {
    for (const [device, viewport] of [["desk", { width: 1280, height: 900 }], ["phone", { width: 390, height: 844 }]]) {
      test(`can be used by everybody: ${scheme}, ${device}`, async () => {
        const on = await newPage(viewport, { colorScheme: scheme, bypassCSP: true }); // axe is written into the page
        for (const hash of pages) {
          await show(hash, on);
          await on.locator("main h1").waitFor();
          if (hash === "#/") await on.locator(".plot canvas").first().waitFor();
          if (hash.includes(service)) await on.getByRole("table", { name: "Who owns the slots" }).waitFor();
          await on.evaluate(axe);
          const { violations } = await on.evaluate(() => window.axe.run());
          const serious = violations.filter((v) => ["serious", "critical"].includes(v.impact));
          assert.deepEqual(serious.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => n.html).slice(0, 3).join(" ")}`), [], hash);
          const wide = await on.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
          assert.ok(wide <= 0, `${hash} is ${wide} pixels wider than the screen`);
          const rows = await on.evaluate(() => new Set([...document.querySelectorAll("header > *:not([hidden])")].filter((e) => e.offsetParent !== null)
            .map((e) => Math.round((e.getBoundingClientRect().top + e.getBoundingClientRect().bottom) / 20))).size);
          if (device === "phone") assert.equal(rows, 1, `${hash}: what the head shows stands in ${rows} rows`);
          if (hash === "#/" || hash.includes(service)) await picture(`${hash === "#/" ? "overview" : "service"}-${scheme}-${device}`, on);
        }
        await on.close();
        quiet();
      });
    }
  }

  test("says so when the director does not answer", async () => {
    await show("#/");
    await page.route("**/v1/live*", (route) => route.abort());
    await page.reload();
    await page.locator("#link.stale", { hasText: "the director does not answer" }).waitFor();
    await page.unroute("**/v1/live*");
    await page.locator("#link.fresh").waitFor();
  });
});
