import { children, el, text } from "../dom";
import { ago, bits, endpoint, percent, plural, share, short } from "../format";
import type { Backend, Live, Rate } from "../live";
import type { Page } from "../page";
import { RingPicture } from "../ring";
import { Table } from "../table";
import { Tiles } from "../tiles";
import { healthOf, stateOf, why } from "./overview";
import { condition, segment, vip } from "./services";

interface Row {
  backend: Backend;
  rate: Rate;
  slots: number; // its share of the service's slots: what its weight gives it
  traffic: number; // its share of new connections, or of packets where none are counted
}

/** One service: its backends, what each gets beside its weight, and its ring. */
export class ServicePage implements Page {
  readonly element = el("div");
  private readonly about = el("p");
  private readonly tiles = new Tiles();
  private readonly note = el("p", { class: "hint" });
  private readonly missing = el("p", { class: "empty" }, "There is no such service.");
  private readonly rest = el("div");
  private readonly ring: RingPicture;
  private readonly table = new Table<Row>({
    caption: "Backends",
    columns: [
      { title: "Backend", cell: ({ backend }) => backend.name, sort: ({ backend }) => backend.name },
      { title: "Address", cell: ({ backend }) => endpoint(backend.address, backend.port), sort: ({ backend }) => backend.address },
      { title: "Segment", cell: ({ backend }) => segment(backend), sort: ({ backend }) => segment(backend) },
      { title: "Mode", cell: ({ backend }) => (backend.tier ? `${backend.mode}, tier ${backend.tier}` : backend.mode) },
      { title: "State", cell: ({ backend }) => stateOf(backend.state), sort: ({ backend }) => backend.state },
      { title: "Health", cell: ({ backend }) => healthOf(backend.health), sort: ({ backend }) => backend.health ?? "" },
      { title: "Why", cell: ({ backend }) => why(backend) },
      { title: "Since", cell: ({ backend }) => (backend.since ? ago(backend.since) : ""), sort: ({ backend }) => -Date.parse(backend.since ?? "0"), number: true },
      { title: "Traffic | weight", cell: (r) => ({ text: `${percent(r.traffic)} | ${percent(r.slots)}`, bar: { part: r.traffic, mark: r.slots } }), sort: (r) => r.traffic, number: true },
      { title: "Packets/s", cell: ({ rate }) => short(rate.packets ?? 0), sort: ({ rate }) => rate.packets ?? 0, number: true },
      { title: "Traffic", cell: ({ rate }) => bits(rate.bytes ?? 0), sort: ({ rate }) => rate.bytes ?? 0, number: true },
      { title: "Connections/s", cell: ({ rate }) => short(rate.connections ?? 0), sort: ({ rate }) => rate.connections ?? 0, number: true },
    ],
    key: ({ backend }) => backend.name,
    search: ({ backend }) => [backend.name, segment(backend), backend.address, backend.state, backend.health, backend.reason].join(" "),
    empty: "It has no backends.",
    onSelect: (row) => this.ring.highlight(row?.backend.name ?? null),
  });

  constructor(private readonly name: string) {
    this.ring = new RingPicture(name);
    this.rest.append(this.about, this.tiles.element, el("section", {}, el("h2", {}, "Backends"), this.note, this.table.element), this.ring.element);
    this.element.append(this.missing, this.rest);
    this.missing.hidden = true;
  }

  update(live: Live): void {
    const s = live.services.get(this.name);
    this.missing.hidden = s !== undefined || live.last === null;
    this.rest.hidden = s === undefined;
    if (s === undefined) return;
    const state = condition(s);
    children(this.about, [el("span", { class: `badge ${state.tone}` }, state.text), el("span", {}, ` ${vip(s)}${s.segment ? ` in ${segment(s)}` : ""}, policy ${s.policy}`)]);
    const rate = live.rates.get(this.name) ?? {};
    this.tiles.update([
      { label: "Packets", value: short(rate.packets ?? 0, "/s"), note: bits(rate.bytes ?? 0) },
      { label: "Connections", value: short(rate.connections ?? 0, "/s"), note: "opened by TCP" },
      { label: "Dropped", value: short(rate.dropped ?? 0, "/s"), note: "packets" },
      { label: "Backends", value: `${s.active} of ${s.backends}`, note: "get new connections" },
      { label: "Log", value: plural(s.generations, "generation"), note: s.waits ? "a change waits for room" : `${s.moved ?? 0} of ${s.slots} slots moved last` },
    ]);
    const detail = live.detail?.service === this.name ? live.detail : null;
    this.updateBackends(s.slots, detail);
    this.ring.update(s, detail?.backends ?? []);
  }

  private updateBackends(slots: number, detail: Live["detail"]): void {
    const all = { connections: 0, packets: 0 };
    for (const rate of detail?.smooth.values() ?? []) {
      all.connections += rate.connections;
      all.packets += rate.packets;
    }
    const by = all.connections > 0 ? "connections" : "packets";
    text(this.note, `The bar is a backend's part of ${by === "connections" ? "new connections" : "packets"} in the last seconds; the mark is what its weight gives it.`);
    this.table.update((detail?.backends ?? []).map((backend) => {
      const rate = detail?.rates.get(backend.name) ?? {};
      return { backend, rate, slots: share(backend.slots, slots), traffic: share(detail?.smooth.get(backend.name)?.[by] ?? 0, all[by]) };
    }));
  }

  close(): void {
    this.ring.close();
  }
}
