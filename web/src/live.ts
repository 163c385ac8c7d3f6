import type { components } from "./openapi";

type Schemas = components["schemas"];
export type Message = Schemas["LiveMessage"];
export type Service = Schemas["LiveService"];
export type Backend = Schemas["LiveBackend"];
export type Rate = Schemas["LiveRate"];
export type Point = Schemas["LivePoint"];
export type HappenedEvent = Schemas["Event"];

const mostPoints = 900;
const mostEvents = 1000;
const silence = 6000; // milliseconds without a message, after which what is shown is said to be old
const retryAfter = 2000;
const smoothing = 0.08; // how much of an average over some ten seconds the last second is

/** What a backend gets, over a while: in a second it may get one connection, or none. */
export interface Smooth {
  connections: number;
  packets: number;
}

/** What a director's live stream has said until now. */
export class Live {
  services = new Map<string, Service>();
  rates = new Map<string, Rate>();
  troubled: NonNullable<Message["troubled"]> = { count: 0, backends: [] };
  reasons: NonNullable<Message["reasons"]> = [];
  points: Point[] = [];
  events: HappenedEvent[] = []; // the newest first
  last: Message | null = null;
  director: Message["director"];
  group: Message["group"];
  bgp: Message["bgp"];
  detail: { service: string; missing: boolean; backends: Backend[]; rates: Map<string, Rate>; smooth: Map<string, Smooth> } | null = null;
  heard = 0; // when the last message came; 0: none has
  problem = "";

  private source: EventSource | null = null;
  private service = "";
  private timer = 0;

  constructor(private readonly changed: () => void) {
    window.setInterval(() => changed(), silence / 2); // what is shown grows old by itself
  }

  /** Listens, also to what becomes of a service's backends. */
  listen(service: string): void {
    if (this.source !== null && service === this.service) return;
    this.service = service;
    this.detail = null;
    this.open();
  }

  /** Whether what is shown is what is. */
  get fresh(): boolean {
    return this.heard > 0 && Date.now() - this.heard < silence;
  }

  private open(): void {
    this.source?.close();
    window.clearTimeout(this.timer);
    const source = new EventSource("v1/live" + (this.service === "" ? "" : "?service=" + encodeURIComponent(this.service)));
    this.source = source;
    source.onmessage = (message: MessageEvent<string>) => {
      this.problem = "";
      this.heard = Date.now();
      this.take(JSON.parse(message.data) as Message);
      this.changed();
    };
    source.onerror = () => {
      // A browser tries again by itself after the end of a stream, but not after a refusal.
      this.problem = "the director does not answer";
      this.changed();
      if (source.readyState === EventSource.CLOSED) this.timer = window.setTimeout(() => this.open(), retryAfter);
    };
  }

  private take(m: Message): void {
    if (m.whole) {
      this.services.clear();
      this.rates.clear();
      this.detail = null;
      if (m.history !== undefined) this.points = m.history.slice();
    }
    this.last = m;
    for (const s of m.services ?? []) this.services.set(s.name, s);
    for (const [name, rate] of Object.entries(m.rates ?? {})) this.rates.set(name, rate);
    for (const name of m.gone ?? []) {
      this.services.delete(name);
      this.rates.delete(name);
    }
    if (m.troubled !== undefined) this.troubled = m.troubled;
    if (m.reasons !== undefined) this.reasons = m.reasons;
    if (m.director !== undefined) this.director = m.director;
    if (m.group !== undefined) this.group = m.group;
    if (m.bgp !== undefined) this.bgp = m.bgp;
    this.takeDetail(m.detail);
    this.takePoint(m);
    this.takeEvents(m.events ?? []);
  }

  private takeDetail(d: Message["detail"]): void {
    if (d === undefined) return;
    this.detail ??= { service: d.service, missing: false, backends: [], rates: new Map(), smooth: new Map() };
    this.detail.missing = d.missing ?? false;
    if (d.missing) this.detail.backends = [];
    const { rates, smooth } = this.detail;
    if (d.backends !== undefined) {
      this.detail.backends = d.backends;
      const there = new Set(d.backends.map((b) => b.name));
      for (const name of [...rates.keys(), ...smooth.keys()]) {
        if (there.has(name)) continue;
        rates.delete(name);
        smooth.delete(name);
      }
    }
    for (const [name, rate] of Object.entries(d.rates ?? {})) rates.set(name, rate);
    for (const [name, rate] of rates) {
      const now = { connections: rate.connections ?? 0, packets: rate.packets ?? 0 };
      const old = smooth.get(name) ?? now;
      const mix = (a: number, b: number): number => a + smoothing * (b - a);
      smooth.set(name, { connections: mix(old.connections, now.connections), packets: mix(old.packets, now.packets) });
    }
  }

  private takePoint(m: Message): void {
    if (m.seconds === 0 || this.points.at(-1)?.time === m.time) return;
    const { time, seconds, total, drops } = m;
    this.points.push(drops === undefined ? { time, seconds, total } : { time, seconds, total, drops });
    if (this.points.length > mostPoints) this.points.splice(0, this.points.length - mostPoints);
  }

  private takeEvents(events: readonly HappenedEvent[]): void {
    const newest = this.events[0]?.id ?? 0;
    this.events.unshift(...events.filter((e) => e.id > newest).reverse());
    this.events.length = Math.min(this.events.length, mostEvents);
  }
}
