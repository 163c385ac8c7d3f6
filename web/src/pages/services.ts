import { el } from "../dom";
import { bits, short } from "../format";
import type { Live, Rate, Service } from "../live";
import type { Page } from "../page";
import { Table, type Cell } from "../table";

interface Row {
  service: Service;
  rate: Rate;
}

/** All services, the busiest or the worst first. */
export class ServicesPage implements Page {
  readonly element = el("div");
  private readonly table = new Table<Row>({
    caption: "Services",
    columns: [
      { title: "Service", cell: ({ service }) => ({ text: service.name, href: "#/services/" + encodeURIComponent(service.name) }), sort: ({ service }) => service.name },
      { title: "VIP", cell: ({ service }) => vip(service), sort: ({ service }) => vip(service) },
      { title: "Segment", cell: ({ service }) => segment(service), sort: ({ service }) => segment(service) },
      { title: "State", cell: ({ service }) => condition(service), sort: ({ service }) => worst(service), number: true },
      { title: "Active", cell: ({ service }) => `${service.active} of ${service.backends}`, sort: ({ service }) => service.active, number: true },
      { title: "Packets/s", cell: ({ rate }) => short(rate.packets ?? 0), sort: ({ rate }) => rate.packets ?? 0, number: true },
      { title: "Traffic", cell: ({ rate }) => bits(rate.bytes ?? 0), sort: ({ rate }) => rate.bytes ?? 0, number: true },
      { title: "Connections/s", cell: ({ rate }) => short(rate.connections ?? 0), sort: ({ rate }) => rate.connections ?? 0, number: true },
      { title: "Dropped/s", cell: ({ rate }) => short(rate.dropped ?? 0), sort: ({ rate }) => rate.dropped ?? 0, number: true },
    ],
    key: ({ service }) => service.name,
    search: ({ service }) => `${service.name} ${segment(service)} ${vip(service)} ${service.policy} ${condition(service).text}`,
    empty: "There are no services.",
  });

  constructor() {
    this.element.append(this.table.element);
  }

  update(live: Live): void {
    this.table.update([...live.services.values()].map((service) => ({ service, rate: live.rates.get(service.name) ?? {} })));
  }
}

export function vip(s: Service): string {
  const address = s.vip.includes(":") ? `[${s.vip}]` : s.vip;
  return `${address}:${s.port}/${s.protocol}`;
}

/** The tenant's network that something is in. */
export function segment(of: { segment?: unknown }): string {
  return of.segment ? String(of.segment) : "none";
}

function down(s: Service): number {
  return Math.max(s.unhealthy ?? 0, s.backends - s.active - (s.draining ?? 0));
}

/** How bad it is, for the order. */
function worst(s: Service): number {
  if (s.backends > 0 && s.active === 0) return 1e6;
  return (s.panic ? 1e5 : 0) + 10 * down(s) + (s.waits ? 1 : 0);
}

export function condition(s: Service): Cell {
  if (s.backends === 0) return { text: "no backends", tone: "off" };
  if (s.active === 0) return { text: "no active backend", tone: "bad" };
  if (s.panic) return { text: "uses all backends", tone: "bad" };
  if (s.tier) return { text: `tier ${s.tier}`, tone: "bad" };
  if (down(s) > 0) return { text: `${down(s)} down`, tone: "bad" };
  if ((s.unknown ?? 0) > 0) return { text: `${s.unknown} unknown`, tone: "warn" };
  if (s.waits) return { text: "change waits", tone: "warn" };
  if ((s.starting ?? 0) > 0) return { text: `${s.starting} starting`, tone: "warn" };
  return s.checked ? { text: "healthy", tone: "good" } : { text: "not checked", tone: "off" };
}
