import { el, text } from "../dom";
import { ago, dateAndTime, percent, plural, share, short } from "../format";
import type { Live, Message } from "../live";
import type { Page } from "../page";
import { Table } from "../table";
import { Tiles } from "../tiles";
import { routerName } from "../verdict";

type Neighbor = NonNullable<Message["bgp"]>["neighbors"][number];
type Director = NonNullable<Message["group"]>["directors"][number];
type Interface = NonNullable<Message["director"]>["interfaces"][number];
type CPU = Message["cpus"][number];

/** Directors, routers, interfaces and what this host has left. */
export class NetworkPage implements Page {
  readonly element = el("div");
  private readonly refused = el("p", { class: "finding bad" });
  private readonly tiles = new Tiles();
  private readonly bgpNote = el("p");
  private readonly directors = new Table<Director>({
    caption: "Directors",
    columns: [
      { title: "Director", cell: (d) => (d.address ? d.address : "this one") + (d.self && d.address ? " (this one)" : ""), sort: (d) => d.address ?? "" },
      { title: "State", cell: (d) => (d.refused ? { text: "refuses", tone: "bad" } : { text: "runs", tone: "good" }) },
      { title: "Version", cell: (d) => d.version },
      { title: "Started", cell: (d) => dateAndTime(d.started) },
      { title: "Revision", cell: (d) => String(d.revision), sort: (d) => d.revision, number: true },
      { title: "Services", cell: (d) => String(d.services), sort: (d) => d.services, number: true },
      { title: "Why", cell: (d) => d.refused ?? "" },
    ],
    key: (d) => d.address ?? "",
    empty: "No director is known.",
  });
  private readonly neighbors = new Table<Neighbor>({
    caption: "BGP sessions",
    columns: [
      { title: "Router", cell: (n) => routerName(n) + (n.segment ? ` ${n.segment}` : ""), sort: (n) => routerName(n) },
      { title: "AS", cell: (n) => String(n.asn), sort: (n) => n.asn, number: true },
      { title: "State", cell: (n) => ({ text: n.state, tone: n.state === "established" ? "good" : "bad" }), sort: (n) => n.state },
      { title: "For", cell: (n) => ago(n.since), sort: (n) => -Date.parse(n.since), number: true },
      { title: "Announced", cell: (n) => String(n.announced), sort: (n) => n.announced, number: true },
      { title: "BFD", cell: (n) => (n.bfd ? { text: n.bfd, tone: n.bfd === "up" ? "good" : "bad" } : "") },
      { title: "Losses", cell: (n) => String(n.losses), sort: (n) => n.losses, number: true },
      { title: "Problem", cell: (n) => n.problem ?? "" },
    ],
    key: (n) => routerName(n),
    search: (n) => `${routerName(n)} ${n.segment ?? ""} ${n.state} ${n.problem ?? ""}`,
    empty: "No routers are configured.",
  });
  private readonly interfaces = new Table<Interface>({
    caption: "Interfaces",
    columns: [
      { title: "Interface", cell: (i) => i.name, sort: (i) => i.name },
      { title: "XDP", cell: (i) => ({ text: i.xdp, tone: i.xdp === "native" ? "good" : "warn" }) },
      { title: "MTU", cell: (i) => String(i.mtu), number: true },
    ],
    key: (i) => i.name,
    empty: "The program is attached to no interface.",
  });
  private readonly cpus = new Table<CPU>({
    caption: "CPUs",
    columns: [
      { title: "CPU", cell: (c) => String(c.cpu), sort: (c) => c.cpu },
      { title: "Of its capacity for packets", cell: (c) => ({ text: percent(c.utilization, 0), bar: { part: c.utilization } }), sort: (c) => c.utilization, number: true },
      { title: "Busy", cell: (c) => percent(c.busy, 0), sort: (c) => c.busy, number: true },
      { title: "Fullness of polls", cell: (c) => percent(c.fullness, 0), sort: (c) => c.fullness, number: true },
    ],
    key: (c) => String(c.cpu),
    empty: "The kernel does not let CPUs be watched.",
  });

  constructor() {
    const section = (title: string, ...of: HTMLElement[]): HTMLElement => el("section", {}, el("h2", {}, title), ...of);
    this.element.append(this.refused, this.tiles.element, section("Directors", this.directors.element),
      section("BGP", this.bgpNote, this.neighbors.element), section("Interfaces", this.interfaces.element), section("CPUs", this.cpus.element));
  }

  update(live: Live): void {
    const { director: d, bgp, last } = live;
    this.refused.hidden = !d?.refused;
    text(this.refused, d?.refused ? `What is asked for is not what runs: ${d.refused}` : "");
    const { remembered, most, settling } = last?.flows ?? { remembered: 0, most: 0, settling: 0 };
    const rings = share(d?.["ring-memory"] ?? 0, d?.limits["ring-memory"] ?? 0);
    this.tiles.update([
      { label: "Flow table", value: percent(share(remembered, most)), note: `${short(remembered)} of ${short(most)}, ${plural(settling, "slot")} settling`, part: share(remembered, most) },
      { label: "Memory of rings", value: percent(rings), note: short(d?.["ring-memory"] ?? 0, "B"), part: rings },
      { label: "Agents", value: String(d?.agents.reporting ?? 0), note: `report, ${d?.agents.silent ?? 0} are silent` },
      { label: "Answered for", value: plural(d?.answers ?? 0, "VIP"), note: "by ARP and NDP" },
      { label: "This process", value: d === undefined ? "-" : ago(d.started), note: d === undefined ? "" : `version ${d.version}, PID ${d.pid}` },
    ]);
    this.directors.update(live.group?.directors ?? []);
    text(this.bgpNote, bgp?.asn ? `AS ${bgp.asn}, ${plural(bgp.routes, "route")}${bgp.draining ? ", draining: the director ends" : ""}.` : "");
    this.neighbors.update(bgp?.neighbors ?? []);
    this.interfaces.update(d?.interfaces ?? []);
    this.cpus.update(last?.cpus ?? []);
  }
}
