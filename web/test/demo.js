// The demo's lab, held: "weir-demo --hold" says where its dashboards and its hosts are.
import { spawn, execFileSync } from "node:child_process";
import { once } from "node:events";

const startTime = 180_000; // until the demo has shown what it shows, on a busy machine

export class Demo {
  #process;
  #weir;
  #text = "";
  url = "";

  constructor(weir) {
    this.#weir = weir;
    this.#process = spawn(`${weir}-demo`, ["--duration", "5s", "--hold"], { stdio: ["ignore", "ignore", "pipe"] });
    this.#process.stderr.setEncoding("utf8").on("data", (text) => (this.#text += text));
  }

  async start() {
    const end = Date.now() + startTime;
    while (!this.#text.includes("Interrupt (Ctrl-C)")) {
      if (this.#process.exitCode !== null || Date.now() > end) throw new Error(`the demo does not hold its lab:\n${this.#text}`);
      await pause(100);
    }
    this.url = this.#match(/(http:\S+) +the dashboard of director1/);
  }

  /** Plugs a host's cable out of the switch, or in: the host keeps its addresses and routes. */
  plug(host, state) {
    const lab = this.#match(/netns\/(\S+-)client /);
    const ip = (...args) => execFileSync("ip", args, { encoding: "utf8" });
    const [, index] = ip("-n", lab + host, "-o", "link", "show", "eth0").match(/eth0@if(\d+):/);
    const [, port] = ip("-n", lab + "switch", "-o", "link").match(new RegExp(`^${index}: ([^@:]+)`, "m"));
    ip("-n", lab + "switch", "link", "set", port, state ? "up" : "down");
  }

  /** Runs a command that asks director1. */
  ask(...args) {
    const socket = this.#match(/ services --socket (\S+director1\S+)/);
    return execFileSync(this.#weir, [...args, "--socket", socket], { encoding: "utf8" });
  }

  async stop() {
    if (this.#process.exitCode !== null) return;
    this.#process.kill("SIGINT");
    await once(this.#process, "exit");
  }

  #match(pattern) {
    const found = this.#text.match(pattern);
    if (found === null) throw new Error(`the demo says nothing like ${pattern}:\n${this.#text}`);
    return found[1];
  }
}

export function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
