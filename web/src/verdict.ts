import { endpoint, percent, plural } from "./format";
import type { Live, Message } from "./live";

export type Tone = "good" | "warn" | "bad" | "off";

/** Something that an operator should look at. */
export interface Finding {
  tone: Tone;
  text: string;
  href: string;
}

const nearlyFull = 0.9;

/** A router as `weir bgp` names it: no two have the same name. */
export function routerName(n: NonNullable<Message["bgp"]>["neighbors"][number]): string {
  return n.interface ?? (n.vrf ? `${n.address}%${n.vrf}` : n.address);
}

/** What is wrong, the worst first. */
export function findings(live: Live): Finding[] {
  const bad: Finding[] = [];
  const warn: Finding[] = [];
  const d = live.director;
  for (const p of d?.problems ?? []) {
    // Sessions with routers have lines of their own, below.
    if (p.severity === "error") bad.push({ tone: "bad", text: p.text, href: "#/network" });
    else if (p.kind !== "bgp" && p.kind !== "bfd") warn.push({ tone: "warn", text: p.text, href: "#/network" });
  }
  for (const s of live.services.values()) {
    const href = "#/services/" + encodeURIComponent(s.name);
    if (s.backends > 0 && s.active === 0) bad.push({ tone: "bad", text: `${s.name} has no backend for new connections`, href });
    else if (s.panic) bad.push({ tone: "bad", text: `${s.name} uses all backends that it reaches: too few are healthy`, href });
    if (s.waits) warn.push({ tone: "warn", text: `${s.name}: a change waits for room in its log`, href });
  }
  if (live.troubled.count > 0) {
    const [first] = live.troubled.backends;
    const alone = first !== undefined && live.troubled.backends.length === 1;
    const what = alone ? `${first.name} (${endpoint(first.address, first.port)}) is down in ${plural(first.services, "service")}` : `${plural(live.troubled.count, "backend")} of services down`;
    bad.push({ tone: "bad", text: what, href: "#/" });
  }
  for (const n of live.bgp?.neighbors ?? []) {
    if (n.state !== "established") bad.push({ tone: "bad", text: `BGP with ${routerName(n)} is ${n.state}${n.problem ? ": " + n.problem : ""}`, href: "#/network" });
    else if (n.bfd && n.bfd !== "up") bad.push({ tone: "bad", text: `BFD with ${routerName(n)} is ${n.bfd}`, href: "#/network" });
    else if (n.problem) warn.push({ tone: "warn", text: `BGP with ${routerName(n)}: ${n.problem}`, href: "#/network" });
  }
  if (live.group?.problem) bad.push({ tone: "bad", text: `The group's directors are not known: ${live.group.problem}`, href: "#/network" });
  for (const run of live.group?.directors ?? []) {
    if (run.refused && !run.self) bad.push({ tone: "bad", text: `${endpoint(run.address ?? "", 0)} does not run what is asked for: ${run.refused}`, href: "#/network" });
  }
  if (d?.neighbor) bad.push({ tone: "bad", text: `ARP and NDP: ${d.neighbor}`, href: "#/network" });
  const flows = live.last?.flows;
  if (flows !== undefined && flows.most > 0 && flows.remembered > nearlyFull * flows.most) {
    warn.push({ tone: "warn", text: `The flow table is ${percent(flows.remembered / flows.most, 0)} full`, href: "#/network" });
  }
  for (const cpu of live.last?.cpus ?? []) {
    if (cpu.utilization > nearlyFull) warn.push({ tone: "warn", text: `CPU ${cpu.cpu} is at ${percent(cpu.utilization, 0)} of what it can forward`, href: "#/network" });
  }
  return [...bad, ...warn];
}

/** The same in a few words, for every page's head. */
export function verdict(live: Live): { tone: Tone; text: string } {
  if (live.heard === 0) return { tone: "off", text: live.problem || "connecting" };
  const found = findings(live);
  const first = found[0];
  if (first === undefined) return { tone: "good", text: "all is well" };
  return { tone: first.tone, text: found.length === 1 ? first.text : `${plural(found.length, "problem")}, first: ${first.text}` };
}
