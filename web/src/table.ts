import { attribute, children, el, text } from "./dom";
import { plural } from "./format";
import type { Tone } from "./verdict";

/** What a cell shows. */
export interface Cell {
  text: string;
  tone?: Tone; // a badge of this colour
  swatch?: string; // a colour that stands before the text, as in a picture's legend
  href?: string;
  bar?: { part: number; mark?: number }; // from 0 to 1: how long, and where a mark is
  title?: string;
}

export interface Column<Row> {
  title: string;
  cell(row: Row): Cell | string;
  sort?(row: Row): number | string; // none: the column cannot be sorted by
  number?: boolean; // stands at the right, and is sorted the largest first
}

export interface Options<Row> {
  caption: string;
  columns: readonly Column<Row>[];
  key(row: Row): string;
  search?(row: Row): string; // what a filter looks in; none: there is no filter
  empty: string; // said where there are no rows
  onSelect?(row: Row | null): void; // who points at a row, or gives it focus
}

const perPage = 50;

/** A table that shows as many rows as one can read, of any number that there are. */
export class Table<Row> {
  readonly element: HTMLElement;
  private readonly head = el("tr", { role: "row" });
  private readonly body = el("tbody", { role: "rowgroup" });
  private readonly filter = el("input", { type: "search", placeholder: "filter", autocomplete: "off", spellcheck: "false" });
  private readonly count = el("span", { class: "count" });
  private readonly back = el("button", { type: "button" }, "Previous");
  private readonly forth = el("button", { type: "button" }, "Next");
  private readonly tools = el("div", { class: "tools" });
  private readonly nothing: HTMLElement;
  private readonly wrap: HTMLElement;
  private readonly lines = new Map<string, HTMLTableRowElement>();
  private readonly rowOf = new WeakMap<HTMLTableRowElement, Row>();
  private rows: readonly Row[] = [];
  private order: number;
  private descending: boolean;
  private page = 0;

  constructor(private readonly options: Options<Row>, order = 0) {
    this.order = order;
    this.descending = options.columns[order]?.number ?? false;
    options.columns.forEach((column, i) => this.head.append(this.heading(column, i)));
    const caption = el("caption", { class: "sr" }, options.caption);
    this.nothing = el("p", { class: "empty" }, options.empty);
    // On a phone rows are blocks, which browsers take for no table: so each says what it is.
    const table = el("table", { role: "table" }, caption, el("thead", { role: "rowgroup" }, this.head), this.body);
    // It can be scrolled sideways on a phone, with the keyboard, too.
    this.wrap = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.caption }, table);
    if (options.search !== undefined) {
      this.filter.setAttribute("aria-label", `Filter: ${options.caption}`);
      this.tools.append(this.filter);
    }
    this.tools.append(this.count, this.back, this.forth);
    this.element = el("div", { class: "table" }, this.tools, this.wrap, this.nothing);
    this.filter.addEventListener("input", () => this.turn(0));
    this.back.addEventListener("click", () => this.turn(this.page - 1));
    this.forth.addEventListener("click", () => this.turn(this.page + 1));
    if (options.onSelect !== undefined) this.follow(options.onSelect);
    this.draw();
  }

  update(rows: readonly Row[]): void {
    this.rows = rows;
    this.draw();
  }

  private turn(page: number): void {
    this.page = page;
    this.draw();
  }

  private heading(column: Column<Row>, i: number): HTMLElement {
    const th = el("th", { scope: "col", role: "columnheader", class: column.number ? "number" : undefined });
    if (column.sort === undefined) {
      th.append(column.title);
      return th;
    }
    const button = el("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      this.descending = this.order === i ? !this.descending : (column.number ?? false);
      this.order = i;
      this.turn(0);
    });
    th.append(button);
    return th;
  }

  private follow(select: (row: Row | null) => void): void {
    const at = (event: Event): void => {
      const line = event.target instanceof Element ? event.target.closest("tr") : null;
      select(line === null ? null : (this.rowOf.get(line) ?? null));
    };
    this.body.addEventListener("pointerover", at);
    this.body.addEventListener("focusin", at);
    this.body.addEventListener("pointerleave", () => select(null));
    this.body.addEventListener("focusout", () => select(null));
  }

  private draw(): void {
    const rows = this.sorted(this.filtered());
    const pages = Math.max(1, Math.ceil(rows.length / perPage));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const shown = rows.slice(this.page * perPage, (this.page + 1) * perPage);
    const keys = new Set<string>();
    const lines = shown.map((row) => {
      const key = this.options.key(row);
      keys.add(key);
      return this.line(key, row);
    });
    for (const key of this.lines.keys()) if (!keys.has(key)) this.lines.delete(key);
    children(this.body, lines);
    [...this.head.children].forEach((th, i) => {
      const sortable = this.options.columns[i]?.sort !== undefined;
      attribute(th, "aria-sort", sortable && i === this.order ? (this.descending ? "descending" : "ascending") : null);
    });
    this.wrap.hidden = rows.length === 0;
    this.nothing.hidden = rows.length > 0;
    this.back.hidden = this.forth.hidden = pages === 1;
    this.back.disabled = this.page === 0;
    this.forth.disabled = this.page === pages - 1;
    const first = this.page * perPage + 1;
    text(this.count, pages === 1 ? plural(rows.length, "row") : `${first} to ${first + shown.length - 1} of ${rows.length}`);
    this.tools.hidden = this.rows.length < 6;
  }

  private filtered(): readonly Row[] {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const { search } = this.options;
    if (words.length === 0 || search === undefined) return this.rows;
    return this.rows.filter((row) => {
      const within = search(row).toLowerCase();
      return words.every((word) => within.includes(word));
    });
  }

  private sorted(rows: readonly Row[]): readonly Row[] {
    const { sort } = this.options.columns[this.order] ?? {};
    if (sort === undefined) return rows;
    const sign = this.descending ? -1 : 1;
    const keyed = rows.map((row) => ({ row, by: sort(row), key: this.options.key(row) }));
    keyed.sort((a, b) => sign * compare(a.by, b.by) || compare(a.key, b.key));
    return keyed.map((k) => k.row);
  }

  private line(key: string, row: Row): HTMLTableRowElement {
    let line = this.lines.get(key);
    if (line === undefined) {
      line = el("tr", { role: "row" });
      this.options.columns.forEach((column, i) => line?.append(newCell(column, i)));
      this.lines.set(key, line);
    }
    this.rowOf.set(line, row);
    this.options.columns.forEach((column, i) => {
      const td = line?.children[i];
      const cell = column.cell(row);
      if (td !== undefined) fill(td as HTMLElement, typeof cell === "string" ? { text: cell } : cell);
    });
    return line;
  }
}

const byName = new Intl.Collator("en", { numeric: true }); // a2 before a10

function compare(a: number | string, b: number | string): number {
  return typeof a === "number" && typeof b === "number" ? a - b : byName.compare(String(a), String(b));
}

function newCell<Row>(column: Column<Row>, i: number): HTMLElement {
  const td = i === 0 ? el("th", { scope: "row", role: "rowheader" }) : el("td", { role: "cell" });
  if (column.number) td.className = "number";
  td.dataset.title = column.title; // where a phone shows rows as cards
  return td;
}

/** Makes a cell show something. What is in it is made again only when it is of another kind. */
function fill(td: HTMLElement, cell: Cell): void {
  const kind = cell.bar !== undefined ? "bar" : cell.href !== undefined ? "link" : cell.tone !== undefined ? "badge" : cell.swatch !== undefined ? "swatch" : "text";
  if (td.dataset.kind !== kind) {
    td.dataset.kind = kind;
    td.replaceChildren();
    if (kind === "bar") td.append(el("span", { class: "bar" }, el("span", { class: "part" }), el("span", { class: "mark" })), el("span"));
    if (kind === "link") td.append(el("a"));
    if (kind === "badge") td.append(el("span"));
    if (kind === "swatch") td.append(el("span", { class: "swatch", "aria-hidden": "true" }), el("span"));
  }
  const inner = kind === "text" ? td : td.lastElementChild;
  if (inner === null) return;
  text(inner, cell.text);
  if (cell.href !== undefined) attribute(inner, "href", cell.href);
  if (kind === "badge") attribute(inner, "class", `badge ${cell.tone}`);
  attribute(td, "title", cell.title ?? null);
  if (cell.bar !== undefined) fillBar(td, cell.bar);
  if (kind === "swatch") (td.firstElementChild as HTMLElement).style.background = cell.swatch ?? "";
}

function fillBar(td: HTMLElement, bar: { part: number; mark?: number }): void {
  const [part, mark] = [...(td.firstElementChild?.children ?? [])] as HTMLElement[];
  if (part !== undefined) part.style.width = `${Math.min(100, 100 * bar.part).toFixed(1)}%`;
  if (mark === undefined) return;
  mark.hidden = bar.mark === undefined;
  if (bar.mark !== undefined) mark.style.left = `${Math.min(100, 100 * bar.mark).toFixed(1)}%`;
}
