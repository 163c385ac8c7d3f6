import type { Live } from "./live";

/** A page: an element that is changed when there is something new. */
export interface Page {
  readonly element: HTMLElement;
  update(live: Live): void;
  close?(): void;
}
