// Elements are made by el and changed in place: what has not changed is not touched, so that
// focus, selections and screen readers stay where they are while numbers change.

export type Child = Node | string | null;

export interface Attributes {
  [name: string]: string | undefined;
}

export function el<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Sets an element's text, if it is another one. */
export function text(element: Element, value: string): void {
  if (element.textContent !== value) element.textContent = value;
}

/** Sets an attribute, or removes it, if that changes something. */
export function attribute(element: Element, name: string, value: string | null): void {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Makes these an element's children, if they are not yet. */
export function children(parent: Element, wanted: readonly Element[]): void {
  let at = parent.firstElementChild;
  for (const child of wanted) {
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  while (at !== null) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}

/** An element of the page that must be there. */
export function byId(id: string): HTMLElement {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page has no ${id}`);
  return element;
}
