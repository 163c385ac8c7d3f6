import "uplot/dist/uPlot.min.css";
import { forgetColours } from "./chart";
import { attribute, byId, el, text } from "./dom";
import { ago, clock } from "./format";
import { Live } from "./live";
import type { Page } from "./page";
import { EventsPage } from "./pages/events";
import { ExplainPage } from "./pages/explain";
import { NetworkPage } from "./pages/network";
import { OverviewPage } from "./pages/overview";
import { PacketsPage } from "./pages/packets";
import { ServicePage } from "./pages/service";
import { ServicesPage } from "./pages/services";
import { verdict } from "./verdict";

const pages: readonly { path: string; title: string; make(): Page }[] = [
  { path: "#/", title: "Overview", make: () => new OverviewPage() },
  { path: "#/services", title: "Services", make: () => new ServicesPage() },
  { path: "#/packets", title: "Packets", make: () => new PacketsPage() },
  { path: "#/network", title: "Network", make: () => new NetworkPage() },
  { path: "#/events", title: "Events", make: () => new EventsPage() },
  { path: "#/explain", title: "Explain", make: () => new ExplainPage() },
];

let current: Page | null = null;
let drawing = 0;
let title = "";
const live = new Live(draw);

/** Shows what has changed, once for each picture that the screen shows. */
function draw(): void {
  if (drawing !== 0 || document.hidden) return;
  drawing = requestAnimationFrame(() => {
    drawing = 0;
    const { tone, text: words } = verdict(live);
    const head = byId("verdict");
    text(head, words);
    attribute(head, "class", `badge ${tone}`);
    const host = live.director?.host ?? "";
    text(byId("host"), host);
    document.title = [title, host, "weir"].filter((part) => part !== "").join(" - ");
    const link = byId("link");
    attribute(link, "class", live.fresh ? "fresh" : "stale");
    text(link, live.fresh ? `live ${clock(live.last?.time ?? "")}` : stale());
    document.body.classList.toggle("old", !live.fresh);
    if (live.heard > 0) current?.update(live);
  });
}

function stale(): string {
  const since = live.heard === 0 ? "" : `, for ${ago(new Date(live.heard).toISOString())}`;
  return (live.problem || "nothing is heard") + since;
}

function route(first: boolean): void {
  const hash = location.hash === "" ? "#/" : location.hash;
  const service = hash.startsWith("#/services/") ? decodeURIComponent(hash.slice("#/services/".length)) : "";
  const page = pages.find(({ path }) => path === (service === "" ? hash : "#/services")) ?? pages[0];
  if (page === undefined) return;
  current?.close?.();
  current = service === "" ? page.make() : new ServicePage(service);
  title = service === "" ? page.title : service;
  const main = byId("main");
  main.replaceChildren(el("h1", {}, title), current.element);
  for (const anchor of byId("nav").querySelectorAll("a")) {
    attribute(anchor, "aria-current", anchor.getAttribute("href") === page.path ? "page" : null);
  }
  live.listen(service);
  if (!first) {
    main.focus({ preventScroll: true }); // a screen reader goes on with the new page
    window.scrollTo(0, 0);
  }
  draw();
}

/** Dark or light is what the system says, unless somebody has chosen. */
function offerThemes(): void {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = (): string => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  const show = (): void => {
    text(button, chosen() === "dark" ? "Light" : "Dark");
    attribute(button, "aria-label", `Show in ${chosen() === "dark" ? "light" : "dark"} colours`);
    forgetColours();
    draw();
  };
  try {
    const before = localStorage.getItem("theme");
    if (before === "dark" || before === "light") document.documentElement.dataset.theme = before;
  } catch {
    // A browser that keeps nothing shows what the system says.
  }
  button.addEventListener("click", () => {
    const theme = chosen() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // It lasts until the page is closed.
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}

/** Whom the director knows by a name and a token, as browsers ask for, can have them forgotten. */
async function offerLeave(): Promise<void> {
  const name = await fetch("./", { method: "HEAD" }).then((r) => r.headers.get("Weir-Client"), () => null);
  const leave = byId("leave");
  leave.hidden = name === null;
  attribute(leave, "title", name === null ? null : `This browser asks as ${name}`);
}

for (const { path, title } of pages) byId("nav").append(el("li", {}, el("a", { href: path }, title)));
document.querySelector("a.skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // the fragment says which page is shown
  byId("main").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
  const filter = document.querySelector<HTMLInputElement>("main input[type=search]");
  if (filter === null) return;
  event.preventDefault();
  filter.focus();
});
document.addEventListener("visibilitychange", draw);
window.addEventListener("hashchange", () => route(false));
offerThemes();
void offerLeave();
route(true);
