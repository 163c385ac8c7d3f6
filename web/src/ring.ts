import type { components } from "./openapi";
import { attribute, el, text } from "./dom";
import { percent, plural, share } from "./format";
import type { Backend, Service } from "./live";
import { Table } from "./table";

type Ring = components["schemas"]["Ring"];

interface Owner {
  name: string;
  place: number;
  slots: number;
  gained: number;
  lost: number;
}

/** The picture of a ring: a square for each slot, in its owner's colour. */
export class RingPicture {
  readonly element: HTMLElement;
  private readonly canvas = el("canvas", { role: "img" });
  private readonly summary = el("p");
  private readonly problem = el("p", { class: "empty" });
  private readonly moved = el("input", { type: "checkbox", id: "moved" });
  private ring: Ring | null = null;
  private version = ""; // of what the picture was asked for
  private highlighted: string | null = null;
  private closed = false;
  private readonly table = new Table<Owner>({
    caption: "Who owns the slots",
    columns: [
      { title: "Owner", cell: (o) => ({ text: o.name, swatch: colourOf(o.place, false) }), sort: (o) => o.name },
      { title: "Slots", cell: (o) => String(o.slots), sort: (o) => o.slots, number: true },
      { title: "Share", cell: (o) => ({ text: percent(share(o.slots, this.ring?.owners.length ?? 0), 2), bar: { part: share(o.slots, this.ring?.owners.length ?? 0) } }), sort: (o) => o.slots, number: true },
      { title: "Gained", cell: (o) => (this.ring?.compared ? String(o.gained) : "-"), sort: (o) => o.gained, number: true },
      { title: "Lost", cell: (o) => (this.ring?.compared ? String(o.lost) : "-"), sort: (o) => o.lost, number: true },
    ],
    key: (o) => o.name + o.place,
    search: (o) => o.name,
    empty: "Nobody owns slots.",
    onSelect: (owner) => this.highlight(owner?.name ?? null),
  });

  constructor(private readonly service: string) {
    const toggle = el("p", { class: "toggle" }, this.moved, el("label", { for: "moved" }, "Only the slots that moved with the last change"));
    this.moved.addEventListener("change", () => this.paint());
    this.element = el("section", { class: "ring" }, el("h2", {}, "Ring"), this.summary, this.problem, toggle,
      el("div", { class: "both" }, this.canvas, this.table.element));
  }

  /** Asks for the ring again when it is another one. */
  update(s: Service, backends: readonly Backend[]): void {
    const version = [s.slots, s.moved, s.generations, ...backends.map((b) => b.name + b.slots)].join(" ");
    if (version === this.version || backends.length === 0) return;
    this.version = version;
    void this.fetch();
  }

  highlight(name: string | null): void {
    if (name === this.highlighted) return;
    this.highlighted = name;
    this.paint();
  }

  close(): void {
    this.closed = true;
  }

  private async fetch(): Promise<void> {
    try {
      const response = await fetch("v1/ring?service=" + encodeURIComponent(this.service));
      if (!response.ok) throw new Error(`the director says ${response.status}`);
      this.ring = (await response.json()) as Ring;
      text(this.problem, "");
    } catch (error) {
      this.version = ""; // it is asked for again with the next change
      text(this.problem, `The ring cannot be read: ${error instanceof Error ? error.message : String(error)}`);
    }
    if (!this.closed) this.show();
  }

  private show(): void {
    const { ring } = this;
    if (ring === null) return;
    const owners: Owner[] = ring.backends.map((name, place) => ({ name, place, slots: 0, gained: 0, lost: 0 }));
    for (const place of ring.owners) {
      const owner = owners[place];
      if (owner !== undefined) owner.slots++;
    }
    for (const move of ring.moved) {
      const gained = owners[ring.owners[move.slot] ?? -1];
      const lost = owners[move.from];
      if (gained !== undefined) gained.gained++;
      if (lost !== undefined) lost.lost++;
    }
    this.table.update(owners);
    const what = ring.compared
      ? `${plural(ring.moved.length, "slot")} (${percent(share(ring.moved.length, ring.owners.length))}) moved with the last change.`
      : "What moved last is not known any more, or nothing has: the log has one generation.";
    text(this.summary, `${plural(ring.owners.length, "slot")}. ${what}`);
    attribute(this.canvas, "aria-label", `The slots of the ring, each in its owner's colour. ${this.summary.textContent} The table beside it says the same.`);
    this.moved.disabled = !ring.compared;
    if (this.moved.disabled) this.moved.checked = false;
    this.paint();
  }

  private paint(): void {
    const { ring } = this;
    const pen = this.canvas.getContext("2d");
    if (ring === null || pen === null || ring.owners.length === 0) return;
    const side = Math.ceil(Math.sqrt(ring.owners.length));
    const scale = Math.max(1, Math.floor(512 / side));
    this.canvas.width = side * scale;
    this.canvas.height = Math.ceil(ring.owners.length / side) * scale;
    const moved = this.moved.checked ? new Set(ring.moved.map((move) => move.slot)) : null;
    ring.owners.forEach((place, slot) => {
      const faint = (moved !== null && !moved.has(slot)) || (this.highlighted !== null && ring.backends[place] !== this.highlighted);
      pen.fillStyle = colourOf(place, faint);
      pen.fillRect((slot % side) * scale, Math.floor(slot / side) * scale, scale, scale);
    });
  }
}

/** Neighbours in the list get colours that are far apart: the golden angle. */
function colourOf(place: number, faint: boolean): string {
  if (place < 0) return "#888";
  const hue = (place * 137.508 + 210) % 360;
  const light = 42 + (place % 3) * 10;
  return faint ? `hsl(${hue} 25% ${light}% / 0.12)` : `hsl(${hue} 68% ${light}%)`;
}
