import uPlot from "uplot";
import { el, text } from "./dom";
import { clock } from "./format";
import type { Point } from "./live";

export interface Line {
  label: string;
  value(point: Point): number;
}

const gap = 15; // seconds between two points without a line

/** A chart of what has been in the last minutes. Its caption says in words what is now. */
export class Chart {
  readonly element: HTMLElement;
  private readonly box = el("div", { class: "plot", "aria-hidden": "true" });
  private readonly caption = el("figcaption");
  private readonly observer = new ResizeObserver(() => this.resize());
  private plot: uPlot | null = null;
  private lines: readonly Line[] = [];
  private colours = "";

  constructor(title: string, private readonly format: (value: number) => string) {
    this.element = el("figure", { class: "chart" }, el("h2", {}, title), this.caption, this.box);
    this.observer.observe(this.box);
  }

  close(): void {
    this.observer.disconnect();
    this.plot?.destroy();
  }

  update(points: readonly Point[], lines: readonly Line[]): void {
    const labels = (of: readonly Line[]): string => of.map((line) => line.label).join("\n");
    const colours = palette().join() + ink().join();
    if (this.plot === null || labels(lines) !== labels(this.lines) || colours !== this.colours) {
      this.colours = colours;
      this.lines = lines;
      this.make();
    }
    this.lines = lines;
    const times: number[] = [];
    const values: (number | null)[][] = lines.map(() => []);
    for (const point of points) {
      const time = Date.parse(point.time) / 1000;
      const before = times.at(-1);
      if (before !== undefined && time - before > gap) {
        times.push(before + 1); // nobody listened: there is no line over what nobody has seen
        for (const of of values) of.push(null);
      }
      times.push(time);
      lines.forEach((line, i) => values[i]?.push(line.value(point)));
    }
    this.plot?.setData([times, ...values]);
    const last = points.at(-1);
    const now = last === undefined ? "no rates yet" : lines.map((line) => `${line.label} ${this.format(line.value(last))}`).join(", ");
    text(this.caption, now === "" ? "nothing" : now);
  }

  private make(): void {
    this.plot?.destroy();
    const [colour, grid] = ink();
    const axis: uPlot.Axis = { stroke: colour ?? "gray", grid: { stroke: grid ?? "gray", width: 1 }, ticks: { stroke: grid ?? "gray" } };
    const colours = palette();
    this.plot = new uPlot(
      {
        width: this.width(),
        height: 200,
        cursor: { y: false },
        legend: { live: false, show: this.lines.length > 1 },
        scales: { y: { range: (_, __, most) => [0, most > 0 ? 1.1 * most : 1] } },
        axes: [{ ...axis, values: (_, times) => times.map((time) => clock(1000 * time)), space: 90 }, { ...axis, size: 80, values: (_, values) => values.map((value) => this.format(value)) }],
        series: [{}, ...this.lines.map((line, i) => ({ label: line.label, stroke: colours[i % colours.length] ?? "gray", width: 2, points: { show: false } }))],
      },
      [[], ...this.lines.map(() => [])],
      this.box,
    );
  }

  private width(): number {
    return Math.max(200, this.box.clientWidth);
  }

  private resize(): void {
    this.plot?.setSize({ width: this.width(), height: 200 });
  }
}

/** What a colour of the stylesheet is now, in the theme that is shown. */
function resolved(name: string): string {
  const probe = el("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

let known = new Map<string, string>();

/** Forgets colours: another theme is shown. */
export function forgetColours(): void {
  known = new Map();
}

function colour(name: string): string {
  const cached = known.get(name);
  if (cached !== undefined) return cached;
  const value = resolved(name);
  known.set(name, value);
  return value;
}

function palette(): string[] {
  return [1, 2, 3, 4, 5, 6].map((n) => colour(`--line-${n}`));
}

function ink(): string[] {
  return [colour("--faint"), colour("--rule")];
}
