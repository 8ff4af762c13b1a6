// View 5: who waits, in order, for what and how long; beneath it the waits that are over. Holds nothing.

import { h, panel, reconcile, roving, s, setText } from "./dom.js";
import { count, ms, shortId } from "./format.js";
import { named, t } from "./i18n.js";
import { requestsNewestFirst, state } from "./store.js";

const MOST_PAST = 30;

export function mount(root) {
  const counts = h("div", { class: "reasons" });
  const waiting = h("tbody", {});
  const past = h("tbody", {});
  const nobody = h("p", { class: "empty" }, t("queue.nobody"));
  const headers = (names) => h("thead", {}, h("tr", {}, names.map((name) =>
    h("th", { scope: "col", class: ["id", "reason"].includes(name) ? null : "number" }, t(`column.${name}`)))));
  const table = h("table", { class: "queue" }, headers(["position", "id", "reason", "waited", "priority", "prompt"]), waiting);
  const pastTable = h("table", { class: "queue" }, headers(["id", "reason", "waited"]), past);
  const settle = [waiting, past].map((body) => roving(body, "a"));
  root.append(h("h1", { class: "hidden" }, t("tab.queue")),
    h("div", { class: "columns queue" }, panel(t("queue.waiting"), counts, nobody, table), panel(t("queue.past"), h("div", { class: "scroll tall" }, pastTable))));

  function update() {
    drawCounts(counts);
    nobody.hidden = state.queue.length > 0;
    table.hidden = !state.queue.length;
    reconcile(waiting, state.queue, (each) => `${each.id} ${each.choice}`, createWaiting, fillWaiting);
    reconcile(past, pastWaits(), (each) => each.key, createPast, () => {});
    settle.forEach((each) => each());
  }
  update();
  return { update };
}

const idLink = (id) => h("a", { class: "id", href: `#/request/${encodeURIComponent(id)}`, title: id, tabindex: -1 }, shortId(id));

function drawCounts(place) {
  const tally = new Map();
  for (const each of state.queue) tally.set(each.reason, (tally.get(each.reason) ?? 0) + 1);
  const most = Math.max(1, ...tally.values());
  reconcile(place, [...tally], ([reason]) => reason, ([reason]) => h("div", { class: "reason" }, h("strong", {}, named("reason", reason)), h("span", { class: "number" }),
    s("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", class: "share", "aria-hidden": "true" }, s("rect", { height: 1, class: "f-queue" })),
    h("small", {}, named("reason_why", reason))),
  (element, [, number]) => {
    setText(element.children[1], count(number));
    element.children[2].firstChild.setAttribute("width", (100 * number) / most);
  });
}

function createWaiting(each) {
  return h("tr", {}, h("td", { class: "number" }), h("td", {}, idLink(each.id)), h("td", {}), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" }));
}

function fillWaiting(row, each) {
  const cells = row.children;
  setText(cells[0], count(each.position + 1));
  setText(cells[2], named("reason", each.reason));
  setText(cells[3], ms(each.waited_ms));
  setText(cells[4], count(each.priority));
  setText(cells[5], count(each.prompt_tokens));
}

/** Waits of requests that were admitted since, newest request first. */
function pastWaits() {
  const waits = [];
  for (const record of requestsNewestFirst()) {
    if (record.state === "queued") continue;
    (record.waits ?? []).forEach((wait, index) => waits.push({ ...wait, id: record.request_id, key: `${record.request_id} ${index} ${wait.duration_ms}` }));
    if (waits.length >= MOST_PAST) break;
  }
  return waits.slice(0, MOST_PAST);
}

function createPast(each) {
  return h("tr", {}, h("td", {}, idLink(each.id)), h("td", {}, named("reason", each.reason)), h("td", { class: "number" }, ms(each.duration_ms)));
}
