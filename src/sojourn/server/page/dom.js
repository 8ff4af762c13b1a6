// Builds elements. Text only ever enters as text nodes: ids and names come from clients and are never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function assemble(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element. Attributes that begin with "on" are listeners; null, undefined and false leave an attribute out. */
export const h = (tag, attributes, ...children) => assemble(document.createElement(tag), attributes, children);

/** The same for SVG. */
export const s = (tag, attributes, ...children) => assemble(document.createElementNS(SVG, tag), attributes, children);

/** Writes text only where it differs, so that a selection in live text survives. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute only where it differs; null removes it. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/**
 * Makes the children of `parent` match `items`, in order. Elements are kept by key, so focus and hover survive live data.
 * `create(item)` makes an element, `update(element, item)` fills it.
 */
export function reconcile(parent, items, keyOf, create, update) {
  const known = parent.keyed ?? new Map();
  const next = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const element = known.get(key) ?? create(item);
    known.delete(key);
    next.set(key, element);
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of known.values()) element.remove();
  parent.keyed = next;
}

/**
 * One tab stop for a list of elements: arrow keys, Home and End move among those that match `selector`.
 * `onKey(element, event)` sees the other keys.
 */
export function roving(container, selector, onKey) {
  const all = () => [...container.querySelectorAll(selector)];
  const settle = () => {
    const elements = all();
    if (elements.length && !elements.some((each) => each.tabIndex === 0)) elements[0].tabIndex = 0;
  };
  container.addEventListener("focusin", (event) => {
    const target = event.target.closest(selector);
    if (!target) return;
    for (const each of container.querySelectorAll(`${selector}[tabindex="0"]`)) each.tabIndex = -1;
    target.tabIndex = 0;
  });
  container.addEventListener("keydown", (event) => {
    const target = event.target.closest(selector);
    if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
    const elements = all();
    const at = elements.indexOf(target);
    const goals = {
      ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: elements.length - 1,
      PageDown: Math.min(at + 15, elements.length - 1), PageUp: Math.max(at - 15, 0),
    };
    if (event.key in goals && event.target === target) {
      elements[goals[event.key]]?.focus();
      event.preventDefault();
    } else {
      onKey?.(target, event);
    }
  });
  return settle;
}

const tip = () => document.getElementById("tip");

/** Shows lines of text beside the pointer, or beside an element for the keyboard. */
export function showTip(lines, x, y) {
  const box = tip();
  box.replaceChildren(...lines.map((line) => h("div", {}, line)));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 4))}px`;
  box.style.top = `${y + 16 + height > innerHeight ? y - height - 8 : y + 16}px`;
}

export function hideTip() {
  tip().hidden = true;
}

/** A row of mutually exclusive choices. */
export function segmented(label, options, selected, choose) {
  const buttons = options.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === selected), onclick: () => pick(value) }, text));
  function pick(value) {
    options.forEach(([each], index) => buttons[index].setAttribute("aria-pressed", String(each === value)));
    choose(value);
  }
  return h("div", { class: "segmented", role: "group", "aria-label": label }, buttons);
}

/** A titled block of a view. */
export const panel = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), children);

/** Name and value pairs. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
