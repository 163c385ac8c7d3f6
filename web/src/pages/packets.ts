import { Chart } from "../chart";
import { el } from "../dom";
import { short } from "../format";
import type { Live, Message } from "../live";
import type { Page } from "../page";
import { Table, type Cell } from "../table";
import type { Tone } from "../verdict";

type Reason = NonNullable<Message["reasons"]>[number];

const mostLines = 6;

/** Under which reasons packets end, and which of them were drops when. */
export class PacketsPage implements Page {
  readonly element = el("div");
  private readonly drops = new Chart("Drops per second, by reason", (n) => short(n));
  private readonly table = new Table<Reason>({
    caption: "Reasons",
    columns: [
      { title: "Reason", cell: (r) => outcome(r), sort: (r) => r.name },
      { title: "Means", cell: (r) => r.text },
      { title: "Packets/s", cell: (r) => short(r.rate ?? 0), sort: (r) => r.rate ?? 0, number: true },
      { title: "Packets", cell: (r) => String(r.packets), sort: (r) => r.packets, number: true },
    ],
    key: (r) => r.name,
    search: (r) => `${r.name} ${r.text}`,
    empty: "No packet has come yet.",
  }, 2);

  constructor() {
    this.element.append(this.drops.element, el("section", {}, el("h2", {}, "Every packet ends under one reason"), this.table.element));
  }

  update(live: Live): void {
    const sums = new Map<string, number>();
    for (const point of live.points) {
      for (const [name, rate] of Object.entries(point.drops ?? {})) sums.set(name, (sums.get(name) ?? 0) + rate);
    }
    const names = [...sums].sort((a, b) => b[1] - a[1]).slice(0, mostLines).map(([name]) => name).sort();
    this.drops.update(live.points, names.map((name) => ({ label: name, value: (p) => p.drops?.[name] ?? 0 })));
    this.table.update(live.reasons);
  }

  close(): void {
    this.drops.close();
  }
}

const tones: Record<string, Tone> = { drop: "bad", forward: "good", answer: "good", pass: "off" };

function outcome(r: Reason): Cell {
  return { text: r.name, tone: tones[r.name.split("_")[0] ?? ""] ?? "off" };
}
