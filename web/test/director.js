// A director with many services, in the network namespace that the test runs in, and beside it a
// host of its own that is the router to all backends and sends what clients would.
import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pause } from "./demo.js";

export const services = 1000;
export const backendsEach = 50;

const startTime = 180_000; // until all is in the kernel, on a busy machine
const listen = "127.0.0.1:6083";

const vip = (n) => `198.18.${n >> 8}.${n & 255}`;

// Each second two datagrams to every service, from other ports than in the second before.
const traffic = `
const sockets = Array.from({ length: 20 }, () => require("node:dgram").createSocket("udp4").on("error", () => {}));
const text = "x".repeat(300);
let turn = 0;
setInterval(() => {
  for (let n = 0; n < ${services}; n++) {
    for (const more of [0, 7]) sockets[(turn + n + more) % sockets.length].send(text, 7, "198.18." + (n >> 8) + "." + (n & 255));
  }
  turn++;
}, 1000);`;

function configuration(dir) {
  const lines = ["director: {interfaces: [eth0]}", "api:", `  listen: ["${listen}"]`, `  cert: ${dir}/api.pem`, `  key: ${dir}/api.key`,
    "  clients:", `  - {name: operator, role: read, token-file: ${dir}/token}`, "services:"];
  for (let n = 0; n < services; n++) {
    lines.push(`- {name: service-${n}, vip: ${vip(n)}, protocol: udp, port: 7, mode: ipip, backends: [`);
    for (let b = 0; b < backendsEach; b++) lines.push(`  {name: backend-${n}-${b}, address: 10.${100 + (n >> 8)}.${n & 255}.${b + 1}},`);
    lines.push("  ]}");
  }
  return lines.join("\n") + "\n";
}

export class Director {
  #dir = mkdtempSync(join(tmpdir(), "weir-web-"));
  #weir;
  #peer;
  #traffic;
  #process;
  #text = "";
  url = `https://${listen}/`;
  login = { username: "operator", password: randomBytes(16).toString("hex") };

  constructor(weir) {
    this.#weir = weir;
  }

  async start() {
    const file = (name) => join(this.#dir, name);
    writeFileSync(file("token"), this.login.password + "\n", { mode: 0o600 });
    writeFileSync(file("weir.yaml"), configuration(this.#dir));
    execFileSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
      "-keyout", file("api.key"), "-out", file("api.pem"), "-subj", "/CN=director", "-addext", "subjectAltName=IP:127.0.0.1"], { stdio: "ignore" });
    await this.#link();
    this.#process = spawn(this.#weir, ["run", "-c", file("weir.yaml"), "--socket", file("director.sock")],
      { env: { ...process.env, STATE_DIRECTORY: file("state") }, stdio: ["ignore", "ignore", "pipe"] });
    this.#process.stderr.setEncoding("utf8").on("data", (text) => (this.#text += text));
    for (const end = Date.now() + startTime; !this.#text.includes("director runs"); await pause(100)) {
      if (this.#process.exitCode !== null || Date.now() > end) throw new Error(`the director does not run:\n${this.#text}`);
    }
    this.#traffic = spawn("nsenter", ["-t", String(this.#peer.pid), "-n", process.execPath, "-e", traffic], { stdio: "ignore" });
  }

  /** Makes eth0, and at its other end the host that has all backends behind it. */
  async #link() {
    const ip = (...args) => execFileSync("ip", args);
    if (execFileSync("ip", ["-o", "link"], { encoding: "utf8" }).trim().split("\n").length > 1) throw new Error("this is not a network namespace of its own");
    this.#peer = spawn("unshare", ["--net", "sleep", "infinity"], { stdio: "ignore" });
    const pid = String(this.#peer.pid);
    const there = (...args) => execFileSync("nsenter", ["-t", pid, "-n", "ip", ...args]);
    const namespace = (of) => execFileSync("readlink", [`/proc/${of}/ns/net`], { encoding: "utf8" });
    while (namespace(pid) === namespace("self")) await pause(10); // until it is in its own
    ip("link", "set", "lo", "up");
    ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", pid);
    ip("address", "add", "172.31.0.1/24", "dev", "eth0");
    ip("link", "set", "eth0", "up");
    there("address", "add", "172.31.0.2/24", "dev", "eth0");
    there("link", "set", "eth0", "up");
    there("route", "add", "198.18.0.0/16", "via", "172.31.0.1");
    ip("route", "add", "10.0.0.0/8", "via", "172.31.0.2");
  }

  async stop() {
    for (const one of [this.#traffic, this.#process, this.#peer]) {
      if (one === undefined || one.exitCode !== null) continue;
      const ended = once(one, "exit");
      one.kill("SIGTERM");
      await ended;
    }
    execFileSync(this.#weir, ["detach", "--socket", join(this.#dir, "director.sock")], { stdio: "ignore" });
    rmSync(this.#dir, { recursive: true });
  }
}
