import { Chart } from "../chart";
import { children, el, text } from "../dom";
import { ago, bits, clock, endpoint, percent, plural, share, short } from "../format";
import type { HappenedEvent, Live, Message } from "../live";
import type { Page } from "../page";
import { Table, type Cell } from "../table";
import { Tiles } from "../tiles";
import { findings, type Tone } from "../verdict";

type Troubled = NonNullable<Message["troubled"]>["backends"][number];

/** What somebody looks at first who was woken up. */
export class OverviewPage implements Page {
  readonly element = el("div", { class: "overview" });
  private readonly list = el("ul", { class: "findings" });
  private readonly tiles = new Tiles();
  private readonly packets = new Chart("Packets per second", (n) => short(n));
  private readonly connections = new Chart("Connections per second", (n) => short(n));
  private readonly troubled = new Table<Troubled>({
    caption: "Backends that are down",
    columns: [
      { title: "Backend", cell: (b) => ({ text: b.name, href: "#/services/" + encodeURIComponent(b.service) }), sort: (b) => b.name },
      { title: "Service", cell: (b) => (b.services > 1 ? `${b.service} and ${plural(b.services - 1, "more")}` : b.service), sort: (b) => b.service },
      { title: "Address", cell: (b) => endpoint(b.address, b.port) },
      { title: "State", cell: (b) => stateOf(b.state) },
      { title: "Health", cell: (b) => healthOf(b.health) },
      { title: "Why", cell: (b) => why(b) },
      { title: "Since", cell: (b) => (b.since ? ago(b.since) : ""), sort: (b) => -Date.parse(b.since ?? "0"), number: true },
    ],
    key: (b) => b.service + "\n" + b.name,
    search: (b) => [b.service, b.name, b.address, b.reason].join(" "),
    empty: "No backend is down.",
  });
  private readonly some = el("p");
  private readonly events = el("ul", { class: "events" });

  constructor() {
    this.element.append(
      el("section", { "aria-label": "Findings" }, this.list),
      this.tiles.element,
      el("section", {}, el("h2", {}, "Backends that are down"), this.troubled.element, this.some),
      el("div", { class: "charts" }, this.packets.element, this.connections.element),
      el("section", {}, el("h2", {}, "Last events"), this.events, el("p", {}, el("a", { href: "#/events" }, "All events"))),
    );
  }

  update(live: Live): void {
    const found = findings(live);
    children(this.list, found.map((f) => el("li", { class: f.tone }, el("a", { href: f.href }, f.text))).map((item, i) => keep(this.list, item, i)));
    this.list.hidden = found.length === 0;
    this.tiles.update(tilesOf(live));
    this.troubled.update(live.troubled.backends);
    const more = live.troubled.count - live.troubled.backends.reduce((sum, b) => sum + b.count, 0);
    text(this.some, more > 0 ? `and ${plural(more, "more")}, on the pages of their services` : "");
    this.packets.update(live.points, [
      { label: "forwarded", value: (p) => p.total.packets ?? 0 },
      { label: "dropped", value: (p) => p.total.dropped ?? 0 },
    ]);
    this.connections.update(live.points, [{ label: "opened", value: (p) => p.total.connections ?? 0 }]);
    showEvents(this.events, live.events.slice(0, 8));
  }

  close(): void {
    this.packets.close();
    this.connections.close();
  }
}

/** Returns the element that is there already, if it says the same. */
export function keep(parent: Element, item: HTMLElement, i: number): HTMLElement {
  const there = parent.children[i];
  return there instanceof HTMLElement && there.isEqualNode(item) ? there : item;
}

export function showEvents(list: HTMLElement, events: readonly HappenedEvent[]): void {
  children(list, events.map((event, i) => keep(list, el("li", { class: eventTone(event) },
    el("time", { datetime: event.time }, clock(event.time)), el("span", { class: "kind" }, event.kind), el("span", {}, event.text)), i)));
}

export function eventTone(event: HappenedEvent): Tone {
  if (event.state === "down" || (event.kind === "bgp" && event.state !== "established")) return "bad";
  if (event.kind === "problem") return event.state === "resolved" ? "good" : event.problem?.severity === "warning" ? "warn" : "bad";
  if (event.kind === "override") return event.state === undefined || event.state === "active" ? "off" : "warn";
  return event.state === undefined ? "off" : "good";
}

function tilesOf(live: Live): Parameters<Tiles["update"]>[0] {
  const { total, flows, cpus, seconds } = live.last ?? {};
  let backends = 0;
  let active = 0;
  for (const s of live.services.values()) {
    backends += s.backends;
    active += s.active;
  }
  const rate = (value: string): string => (seconds ? value : "-");
  const busiest = Math.max(0, ...(cpus ?? []).map((cpu) => cpu.utilization));
  const full = share(flows?.remembered ?? 0, flows?.most ?? 0);
  return [
    { label: "Packets", value: rate(short(total?.packets ?? 0, "/s")), note: rate(bits(total?.bytes ?? 0)) },
    { label: "Connections", value: rate(short(total?.connections ?? 0, "/s")), note: "opened by TCP" },
    { label: "Dropped", value: rate(short(total?.dropped ?? 0, "/s")), note: "packets, by the director" },
    { label: "Services", value: String(live.services.size), note: `${active} of ${plural(backends, "backend")} active` },
    { label: "Flow table", value: percent(full), note: `${short(flows?.remembered ?? 0)} of ${short(flows?.most ?? 0)}`, part: full },
    { label: "Busiest CPU", value: cpus?.length ? percent(busiest, 0) : "-", note: "of its capacity for packets", part: busiest },
  ];
}

export function stateOf(state: string): Cell {
  const tones: Record<string, Tone> = { active: "good", draining: "warn", suspect: "warn", down: "bad" };
  return { text: state, tone: tones[state] ?? "off" };
}

export function healthOf(health: string | undefined): Cell {
  const tones: Record<string, Tone> = { up: "good", down: "bad", unknown: "warn" };
  return health === undefined || health === "" ? { text: "not checked", tone: "off" } : { text: health, tone: tones[health] ?? "off" };
}

export function why(b: { reason?: string; detail?: string; health?: string; state: string; "next-hop": string; strain?: number; override?: { state: string; by: string; at: string } }): string {
  if (b.override) {
    const override = `${b.override.state} beside the file by ${b.override.by || "somebody"}, ${ago(b.override.at)} ago: weir undrain ends it`;
    const { override: _, ...rest } = b;
    return [why(rest), override].filter((part) => part !== "").join("; ");
  }
  if (b.reason) return b.detail ? `${b.reason}: ${b.detail}` : b.reason;
  if (b.state === "down" && b.health !== "down" && b["next-hop"] === "") return "its next hop is not known";
  if (b.strain !== undefined) return `strained: keeps ${b.strain} eighths of its share`;
  return "";
}
