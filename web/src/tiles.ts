import { children, el, text } from "./dom";

/** A number and what it is. */
export interface Tile {
  label: string;
  value: string;
  note?: string;
  part?: number; // from 0 to 1: a meter is shown, too
}

/** A row of numbers. */
export class Tiles {
  readonly element = el("dl", { class: "tiles" });
  private readonly boxes = new Map<string, HTMLElement>();

  update(tiles: readonly Tile[]): void {
    children(this.element, tiles.map((tile) => this.box(tile)));
  }

  private box(tile: Tile): HTMLElement {
    let box = this.boxes.get(tile.label);
    if (box === undefined) {
      box = el("div", {}, el("dt", {}, tile.label), el("dd", { class: "value" }), el("dd", { class: "note" }));
      if (tile.part !== undefined) box.append(el("dd", {}, el("meter", { "aria-label": tile.label, min: "0", max: "1", high: "0.9", optimum: "0" })));
      this.boxes.set(tile.label, box);
    }
    const [, value, note] = [...box.children];
    if (value !== undefined) text(value, tile.value);
    if (note !== undefined) text(note, tile.note ?? "");
    const meter = box.querySelector("meter");
    if (meter !== null && tile.part !== undefined && meter.value !== tile.part) meter.value = tile.part;
    return box;
  }
}
