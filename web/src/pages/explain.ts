import type { components } from "../openapi";
import { el, text } from "../dom";
import { endpoint, plural } from "../format";
import type { Live } from "../live";
import type { Page } from "../page";

type Explanation = components["schemas"]["Explanation"];
type Problem = components["schemas"]["Problem"];

/** Offered for a service of all ports. */
const anyPort = 80;

/** A browser's list of more than that helps nobody. */
const mostOffered = 500;

const tones: Record<string, string> = { drop: "bad", forward: "good", answer: "good", pass: "off" };

/** Asks the director what it would do with a packet. */
export class ExplainPage implements Page {
  readonly element = el("div");
  private readonly form = el("form", { class: "explain" });
  private readonly answer = el("section", { "aria-live": "polite", "aria-label": "Answer" });
  private readonly button = el("button", { type: "submit" }, "Explain");
  private readonly vips = el("datalist", { id: "vips" });
  private offered = "";

  constructor() {
    this.form.append(
      field("source", "Source", "198.51.100.7:5555", "client's address and port"),
      field("destination", "Destination", "203.0.113.10:443", "VIP and port"),
      choice("protocol", "Protocol", ["tcp", "udp", "icmp"]),
      choice("flags", "TCP flags", ["syn", "ack", "syn,ack", "fin,ack", "rst"]),
      field("segment", "Segment", "vlan:100", "only where it has one", false),
      field("interface", "Interface", "eth0", "only if another one", false),
      this.button,
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.ask();
    });
    this.form.querySelector("#destination")?.setAttribute("list", "vips");
    this.form.append(this.vips);
    this.element.append(el("p", {}, "The director runs its own program on such a packet, and says each decision. Nothing is counted, remembered or sent."), this.form, this.answer);
  }

  /** What was asked stands until something else is; only the VIPs that are offered change. */
  update(live: Live): void {
    const offered = [...live.services.values()].map((s) => endpoint(s.vip, Number.parseInt(String(s.port), 10) || anyPort)).sort().slice(0, mostOffered);
    if (offered.join() === this.offered) return;
    this.offered = offered.join();
    this.vips.replaceChildren(...offered.map((value) => el("option", { value })));
  }

  private async ask(): Promise<void> {
    const data = new FormData(this.form);
    const value = (name: string): string => String(data.get(name) ?? "").trim();
    const protocol = value("protocol");
    const question = {
      source: whole(value("source")), destination: whole(value("destination")), protocol,
      ...(protocol === "tcp" ? { flags: value("flags").split(",") } : {}),
      ...(value("segment") === "" ? {} : { segment: value("segment") }),
      ...(value("interface") === "" ? {} : { interface: value("interface") }),
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
    e.steps.forEach(({ step, says }, i) => {
      // A header more of the same packet has its name already.
      if (e.steps[i - 1]?.step !== step || step === "candidate") steps.append(el("dt", {}, step));
      steps.append(el("dd", {}, says));
    });
    const outcome = el("p", {}, el("span", { class: `badge ${tones[e.outcome] ?? "off"}` }, e.outcome), el("span", {}, ` ${e.reason}`));
    this.answer.replaceChildren(el("h2", {}, "Answer"), outcome, steps, frame("Packet in", e.frame), ...(e.out ? [frame("Packet out", e.out)] : []));
  }
}

/** An address without a port, as of ICMP, has port 0. */
function whole(address: string): string {
  if (/^[^:]*$/.test(address)) return `${address}:0`;
  if (address.startsWith("[") && address.endsWith("]")) return `${address}:0`;
  return (address.match(/:/g)?.length ?? 0) > 1 && !address.startsWith("[") ? `[${address}]:0` : address;
}

function field(name: string, label: string, placeholder: string, hint: string, required = true): HTMLElement {
  const input = el("input", { id: name, name, placeholder, ...(required ? { required: "" } : {}), autocomplete: "off", spellcheck: "false", "aria-describedby": name + "-hint" });
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
