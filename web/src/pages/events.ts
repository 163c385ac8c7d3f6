import { el } from "../dom";
import { dateAndTime } from "../format";
import type { HappenedEvent, Live } from "../live";
import type { Page } from "../page";
import { Table } from "../table";
import { eventTone } from "./overview";

/** What has happened, the newest first. */
export class EventsPage implements Page {
  readonly element = el("div");
  private readonly table = new Table<HappenedEvent>({
    caption: "Events",
    columns: [
      { title: "Time", cell: (e) => dateAndTime(e.time), sort: (e) => e.id, number: true },
      { title: "Kind", cell: (e) => ({ text: e.kind, tone: eventTone(e) }), sort: (e) => e.kind },
      { title: "What", cell: (e) => e.text },
    ],
    key: (e) => String(e.id),
    search: (e) => `${e.kind} ${e.text}`,
    empty: "Nothing has happened since the director started.",
  });

  constructor() {
    this.element.append(this.table.element);
  }

  update(live: Live): void {
    this.table.update(live.events);
  }
}
