// The dashboard of a director with 1,000 services of 50 backends each, over TLS, in the browser of
// somebody who logs in. It runs in a network namespace of its own:
//
//	weir run, Chromium --- eth0, backends: who takes all tunnels, and sends clients' datagrams
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";
import { Director, backendsEach, services } from "./director.js";

const patience = 120_000;

describe("the dashboard of 50,000 backends", () => {
  const director = new Director(process.env.WEIR ?? "../bin/weir");
  const complaints = [];
  const heard = { messages: 0, bytes: 0, largest: 0, first: 0 };
  let browser, page;

  before(async () => {
    await director.start();
    browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
  });
  after(async () => {
    await browser?.close();
    await director.stop();
  });

  async function open(credentials) {
    const context = await browser.newContext({ ignoreHTTPSErrors: true, ...(credentials ? { httpCredentials: credentials } : {}) });
    const opened = await context.newPage();
    opened.setDefaultTimeout(patience);
    return opened;
  }

  /** Wants 401. A browser that can ask nobody for a password calls that an error, or shows the answer. */
  async function refused(by, url) {
    const unanswered = (error) => (assert.match(error.message, /ERR_INVALID_AUTH_CREDENTIALS/), 401);
    assert.equal(await by.goto(url).then((response) => response.status(), unanswered), 401);
  }

  const rows = () => page.locator("tbody tr").count();
  const elements = () => page.evaluate(() => document.getElementsByTagName("*").length);

  test("shows nothing to strangers", async () => {
    for (const credentials of [undefined, { ...director.login, password: director.login.password + "x" }]) {
      const stranger = await open(credentials);
      await refused(stranger, director.url);
      await stranger.context().close();
    }
  });

  test("loads, and is live", async (t) => {
    page = await open(director.login);
    page.on("console", (m) => ["error", "warning"].includes(m.type()) && complaints.push(m.text()));
    page.on("pageerror", (error) => complaints.push(error.message));
    const session = await page.context().newCDPSession(page);
    await session.send("Network.enable");
    session.on("Network.eventSourceMessageReceived", ({ data }) => {
      heard.messages++;
      heard.bytes += data.length;
      heard.largest = Math.max(heard.largest, data.length);
      heard.first ||= data.length;
    });
    const begin = Date.now();
    await page.goto(director.url);
    await page.locator("#link.fresh").waitFor();
    await page.locator(".tiles", { hasText: `of ${services * backendsEach} backends active` }).waitFor();
    t.diagnostic(`it shows what is there after ${Date.now() - begin} ms; the first message has ${heard.first} bytes`);
    assert.ok(heard.first < 1_000_000, `the first message has ${heard.first} bytes`);
    await page.locator("#leave", { hasText: "Log out" }).waitFor();
  });

  test("has as many rows as one can read, of all services", async (t) => {
    let begin = Date.now();
    await page.goto(director.url + "#/services");
    await page.locator("tbody tr").nth(49).waitFor();
    await page.getByText(`1 to 50 of ${services}`).waitFor();
    t.diagnostic(`services: ${Date.now() - begin} ms, ${await rows()} rows, ${await elements()} elements`);
    assert.equal(await rows(), 50);
    assert.ok((await elements()) < 2000);
    begin = Date.now();
    await page.getByRole("button", { name: "Next" }).click();
    await page.getByText(`51 to 100 of ${services}`).waitFor();
    t.diagnostic(`next page: ${Date.now() - begin} ms`);
    begin = Date.now();
    await page.getByLabel("Filter: Services").fill("service-777");
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
    t.diagnostic(`filter: ${Date.now() - begin} ms`);
  });

  test("shows a service's backends, and its ring", async (t) => {
    const begin = Date.now();
    await page.getByRole("link", { name: "service-777", exact: true }).click();
    await page.getByRole("heading", { level: 1, name: "service-777" }).waitFor();
    const backends = page.getByRole("table", { name: "Backends" }).locator("tbody tr");
    await backends.nth(backendsEach - 1).waitFor();
    await page.getByRole("table", { name: "Who owns the slots" }).waitFor();
    t.diagnostic(`a service: ${Date.now() - begin} ms, ${await rows()} rows, ${await elements()} elements`);
    assert.equal(await backends.count(), backendsEach);
    assert.ok((await elements()) < 6000);
    await page.waitForFunction(() => [...document.querySelectorAll("td[data-title='Packets/s']")].some((td) => parseFloat(td.textContent) > 0));
  });

  test("stays live with traffic to all services, and takes bounded bytes", async (t) => {
    for (const hash of ["#/", "#/services", "#/packets", "#/network", "#/events"]) {
      const begin = Date.now();
      await page.goto(director.url + hash);
      await page.locator("main h1").waitFor();
      await page.locator("#link.fresh").waitFor();
      t.diagnostic(`${hash}: ${Date.now() - begin} ms, ${await elements()} elements`);
      assert.ok((await elements()) < 6000);
    }
    await page.goto(director.url + "#/services");
    const before = { ...heard, at: Date.now() };
    await page.waitForTimeout(10_000); // that is the time over which bytes are counted
    const seconds = (Date.now() - before.at) / 1000;
    const [messages, bytes] = [heard.messages - before.messages, heard.bytes - before.bytes];
    t.diagnostic(`with traffic to all services ${messages} messages in ${seconds.toFixed(1)} s, ${(bytes / seconds).toFixed(0)} bytes/s, the largest ${heard.largest}`);
    assert.ok(messages > 0, "nothing is heard");
    assert.equal(await page.locator("#link.fresh").count(), 1, "what is shown is called old");
    assert.ok(bytes / messages < 200_000, `a message has ${(bytes / messages).toFixed(0)} bytes`);
    assert.deepEqual(complaints, []);
  });

  test("forgets who has logged in", async () => {
    // The browser itself remembers, as it does for people, and not playwright.
    const context = await browser.newContext({ ignoreHTTPSErrors: true });
    const own = await context.newPage();
    const { username, password } = director.login;
    await own.goto(director.url.replace("//", `//${username}:${password}@`));
    assert.equal((await own.goto(director.url)).status(), 200);
    await own.locator("#link.fresh").waitFor();
    await refused(own, director.url + "logout");
    await refused(own, director.url);
    await context.close();
  });
});
