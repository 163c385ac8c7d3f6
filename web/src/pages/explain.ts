import type { components } from "../openapi";
import { el, text } from "../dom";
import { plural } from "../format";
import type { Page } from "../page";

type Explanation = components["schemas"]["Explanation"];
type Slot = NonNullable<Explanation["slot"]>;
type Problem = components["schemas"]["Problem"];

const chosen: Record<string, string> = {
  "first-fragment": "as its packet's first fragment",
  "full-nat": "full NAT knows the flow",
  "connection-id": "its connection ID names it",
  memory: "the flow is remembered",
  load: "by load, of the slot's owner and its backup",
  row: "the first candidate that is up",
  age: "the oldest candidate that is up: nobody has seen the connection begin",
};

const tones: Record<string, string> = { drop: "bad", forward: "good", answer: "good", pass: "off" };

/** Asks the director what it would do with a packet. */
export class ExplainPage implements Page {
  readonly element = el("div");
  private readonly form = el("form", { class: "explain" });
  private readonly answer = el("section", { "aria-live": "polite", "aria-label": "Answer" });
  private readonly button = el("button", { type: "submit" }, "Explain");

  constructor() {
    this.form.append(
      field("source", "Source", "198.51.100.7:5555", "client's address and port"),
      field("destination", "Destination", "203.0.113.10:443", "VIP and port"),
      choice("protocol", "Protocol", ["tcp", "udp", "icmp"]),
      choice("flags", "TCP flags", ["syn", "ack", "syn,ack", "fin,ack", "rst"]),
      this.button,
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.ask();
    });
    this.element.append(el("p", {}, "The director runs its own program on such a packet, and says each decision. Nothing is counted, remembered or sent."), this.form, this.answer);
  }

  update(): void {
    // What was asked stands until something else is.
  }

  private async ask(): Promise<void> {
    const data = new FormData(this.form);
    const value = (name: string): string => String(data.get(name) ?? "").trim();
    const protocol = value("protocol");
    const question = {
      source: whole(value("source")), destination: whole(value("destination")), protocol,
      ...(protocol === "tcp" ? { flags: value("flags").split(",") } : {}),
    };
    this.button.disabled = true;
    try {
      const response = await fetch("v1/explain", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) });
      if (response.ok) this.show((await response.json()) as Explanation);
      else this.refuse((await response.json()) as Problem);
    } catch (error) {
      this.refuse({ title: "", status: 0, detail: `The director does not answer: ${error instanceof Error ? error.message : String(error)}` });
    }
    this.button.disabled = false;
  }

  private refuse(problem: Problem): void {
    const lines = problem.errors?.map((e) => el("li", {}, e.field ? `${e.field}: ${e.detail}` : e.detail)) ?? [];
    this.answer.replaceChildren(el("p", { class: "finding bad" }, problem.detail ?? problem.title), el("ul", {}, ...lines));
  }

  private show(e: Explanation): void {
    const steps = el("dl", { class: "steps" });
    const step = (what: string, says: string): void => steps.append(el("dt", {}, what), el("dd", {}, says));
    step("comes in", e.interface);
    if (e.flow) {
      const icmp = e.flow["icmp-error"] ? ", an ICMP error about it" : "";
      step("flow", `${end(e.flow.source)} to ${end(e.flow.destination)}, protocol ${e.flow.protocol}${icmp}${e.flow["tcp-flags"] ? ", " + e.flow["tcp-flags"] : ""}, TTL ${e.flow.ttl}, ${plural(e.flow.length, "byte")}`);
    }
    step("service", e.service ? `${e.service.name}: policy ${e.service.policy}, affinity ${e.service.affinity}` : "none");
    if (e.memory) step("remembered", `${e.memory.state} at ${end(e.memory.backend) || "a backend that is gone"}${e.memory.follows ? "" : ", not followed"}`);
    addSlot(step, "slot", e.slot);
    addSlot(step, "slot before", e.before);
    if (e.backend) {
      const by = chosen[e.chosen ?? ""];
      step("backend", `${e.backend.name} ${end(e.backend.backend)}${by === undefined ? "" : ": " + by}`);
      const way = e.backend.local ? "this host" : `by ${e.backend.interface || "-"} to ${e.backend["next-hop"] || "-"}`;
      step("way", `${e.backend.mode}, ${way}, MTU ${e.backend.mtu}`);
    }
    if (e.leaves) step("leaves by", e.leaves);
    const outcome = el("p", {}, el("span", { class: `badge ${tones[e.outcome] ?? "off"}` }, e.outcome), el("span", {}, ` ${e.reason}`));
    this.answer.replaceChildren(el("h2", {}, "Answer"), outcome, steps, frame("Packet in", e.frame), ...(e.out ? [frame("Packet out", e.out)] : []));
  }
}

function addSlot(step: (what: string, says: string) => void, what: string, slot: Slot | undefined): void {
  if (!slot) return;
  step(what, `${slot.number} of ${slot.of}${slot.settling ? ", flows of others may be remembered" : ""}`);
  slot.candidates.forEach((c, i) => {
    const generations = (c.generations ?? []).map((g) => `${g.backup ? "backup" : "owner"} in generation ${g.number}`).join(", ");
    step(`candidate ${i + 1}`, `${c.name} ${end(c.backend)}, ${c.state}${generations === "" ? "" : ", " + generations}`);
  });
}

/** An address, with its port where it has one: 0 is none. */
function end(address: string): string {
  return address.replace(/^\[?(.*?)\]?:0$/, "$1");
}

/** An address without a port, as of ICMP, has port 0. */
function whole(address: string): string {
  if (/^[^:]*$/.test(address)) return `${address}:0`;
  if (address.startsWith("[") && address.endsWith("]")) return `${address}:0`;
  return (address.match(/:/g)?.length ?? 0) > 1 && !address.startsWith("[") ? `[${address}]:0` : address;
}

function field(name: string, label: string, placeholder: string, hint: string): HTMLElement {
  const input = el("input", { id: name, name, placeholder, required: "", autocomplete: "off", spellcheck: "false", "aria-describedby": name + "-hint" });
  return el("div", {}, el("label", { for: name }, label), input, el("small", { id: name + "-hint" }, hint));
}

function choice(name: string, label: string, values: readonly string[]): HTMLElement {
  const select = el("select", { id: name, name }, ...values.map((value) => el("option", {}, value)));
  return el("div", {}, el("label", { for: name }, label), select);
}

/** A frame as hexadecimal digits, folded away. */
function frame(title: string, hex: string): HTMLElement {
  const lines: string[] = [];
  for (let at = 0; at < hex.length; at += 32) lines.push(`${(at / 2).toString(16).padStart(4, "0")}  ${(hex.slice(at, at + 32).match(/../g) ?? []).join(" ")}`);
  const pre = el("pre", { tabindex: "0" });
  text(pre, lines.join("\n"));
  return el("details", {}, el("summary", {}, `${title}, ${plural(hex.length / 2, "byte")}`), pre);
}
