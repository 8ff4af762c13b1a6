// View 1: the requests, one row each, with a bar for each life on a shared time axis. Owns filter, order, pins and time window.

import { h, hideTip, reconcile, roving, s, segmented, setAttribute, setText, showTip } from "./dom.js";
import { count, ms, shortId, tick, tickStep } from "./format.js";
import { named, t } from "./i18n.js";
import { swatch } from "./request_account.js";
import { LIVE_STATES, STATIONS, lengthOf, queuedMs, stationsOf } from "./stations.js";
import { now, requestsNewestFirst, state } from "./store.js";

const MOST_ROWS = 200;
const WINDOWS = [10_000, 30_000, 120_000, 600_000];
const settings = {
  text: "", state: "all", sort: "received", descending: true, windowMs: 30_000, frozenAt: null, pinned: new Set(), range: null,
};

/** Shows only the requests behind a bar of a histogram: {text, keep(record)}. */
export function filterTo(range) {
  settings.range = range;
}

const COLUMNS = {
  id: { value: (record) => record.request_id },
  state: { value: (record) => record.state },
  prompt: { value: (record) => record.prompt_tokens, text: (record) => count(record.prompt_tokens), number: true },
  cached: { value: (record) => record.cached_tokens, text: (record) => count(record.cached_tokens), number: true },
  output: { value: (record) => record.completion_tokens, text: (record) => count(record.completion_tokens), number: true },
  queue: { value: queuedMs, text: (record) => ms(queuedMs(record)), number: true },
  ttft: { value: (record) => record.ttft?.total_ms, text: (record) => ms(record.ttft?.total_ms), number: true },
  tpot: { value: (record) => record.tpot_ms, text: (record) => ms(record.tpot_ms), number: true },
  e2e: { value: (record) => lengthOf(record, now()), text: (record) => ms(lengthOf(record, now())), number: true },
};

function matches(record) {
  const { text, state: wanted, range } = settings;
  if (wanted === "live" && !LIVE_STATES.has(record.state)) return false;
  if (wanted !== "all" && wanted !== "live" && record.state !== wanted) return false;
  if (range && !range.keep(record)) return false;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const hay = [record.request_id, record.client_request_id, record.endpoint, record.model, record.finish_reason].join(" ");
  return words.every((word) => hay.toLowerCase().includes(word));
}

function ordered(records) {
  const value = COLUMNS[settings.sort]?.value ?? ((record) => record.received_ms);
  const sign = settings.descending ? -1 : 1;
  const rank = (record) => (settings.pinned.has(record.request_id) ? 0 : 1);
  return records.sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    if (left == null || right == null) return left == null ? (right == null ? 0 : 1) : -1;
    return left < right ? -sign : left > right ? sign : b.received_ms - a.received_ms;
  });
}

/** The stretch of time that the bars show: up to now while something is live, else up to the end of the last request. */
function timeWindow(records) {
  const end = (record) => record.received_ms + lengthOf(record, now());
  const live = records.some((record) => LIVE_STATES.has(record.state));
  const right = settings.frozenAt ?? (live ? now() : Math.max(0, ...records.map(end)));
  if (settings.windowMs !== "all") return { right, length: settings.windowMs };
  const left = Math.min(right - 1, ...records.map((record) => record.received_ms));
  return { right, length: (right - left) * 1.01 };
}

export function mount(root) {
  const body = h("tbody", {});
  const axis = s("svg", { class: "axis", "aria-hidden": "true" });
  const summary = h("span", { class: "summary", role: "status" });
  const table = h("table", { class: "requests" },
    h("colgroup", {}, ["pin", ...Object.keys(COLUMNS), "life"].map((name) => h("col", { class: `col-${name}` }))),
    h("thead", {}, header(axis, () => update())), body);
  const chip = h("span", {});
  const nothing = h("p", { class: "empty" }, t("requests.none"));
  root.append(h("h1", { class: "hidden" }, t("tab.requests")), toolbar(() => update(), chip, summary),
    h("div", { class: "scroll" }, table, nothing),
    h("div", { class: "toolbar" }, legend(), h("span", { class: "grow" }), h("span", { class: "hint" }, t("requests.keys"))));

  const togglePin = (id) => {
    if (!settings.pinned.delete(id)) settings.pinned.add(id);
    update();
  };
  const settle = roving(body, "tr", (row, event) => {
    if (event.key === "Enter") location.hash = `#/request/${encodeURIComponent(row.dataset.id)}`;
    else if (event.key === " ") togglePin(row.dataset.id);
    else return;
    event.preventDefault();
    if (event.key === " ") row.focus();
  });

  function update() {
    drawChip(chip, update);
    const found = ordered(requestsNewestFirst().filter(matches));
    const records = found.slice(0, MOST_ROWS);
    const frame = timeWindow(records);
    reconcile(body, records, (record) => record.request_id, (record) => createRow(record, togglePin),
      (row, record) => fillRow(row, record, frame));
    setText(summary, t("requests.summary", { shown: count(records.length), all: count(state.requests.size) }));
    nothing.hidden = records.length > 0;
    drawAxis(axis, table, frame);
    settle();
  }
  update();
  return { update, destroy: hideTip };
}

function toolbar(update, chip, summary) {
  const search = h("input", {
    type: "search", value: settings.text, placeholder: t("requests.filter"), "aria-label": t("requests.filter"),
    oninput: (event) => {
      settings.text = event.target.value;
      update();
    },
  });
  const choices = ["all", "live", "queued", "running", "finished", "aborted", "failed"];
  const select = h("select", {
    "aria-label": t("requests.state"),
    onchange: (event) => {
      settings.state = event.target.value;
      update();
    },
  }, choices.map((name) => h("option", { value: name, selected: name === settings.state }, t(`state.${name}`))));
  const windows = [...WINDOWS.map((each) => [each, t("requests.window", { time: tick(each) })]), ["all", t("requests.fit")]];
  const freeze = h("button", {
    type: "button", "aria-pressed": String(settings.frozenAt !== null),
    onclick: () => {
      settings.frozenAt = settings.frozenAt === null ? now() : null;
      setAttribute(freeze, "aria-pressed", String(settings.frozenAt !== null));
      update();
    },
  }, t("requests.freeze"));
  const pick = (value) => {
    settings.windowMs = value;
    update();
  };
  return h("div", { class: "toolbar" }, search, select, chip, h("span", { class: "grow" }), summary,
    segmented(t("requests.axis"), windows, settings.windowMs, pick), freeze);
}

const legend = () => h("div", { class: "legend" }, STATIONS.map((name) => h("span", {}, swatch(name), named("station", name))),
  h("span", {}, h("b", { "aria-hidden": "true" }, "| "), t("requests.first")));

function drawChip(place, update) {
  if (!settings.range) return place.replaceChildren();
  const clear = () => {
    settings.range = null;
    update();
  };
  if (place.textContent.startsWith(settings.range.text)) return null;
  return place.replaceChildren(h("button", { type: "button", class: "chip", onclick: clear, title: t("requests.clear") },
    `${settings.range.text} \u00d7`));
}

function header(axis, update) {
  const cells = Object.entries(COLUMNS).map(([name, column]) => {
    const sort = () => {
      settings.descending = settings.sort === name ? !settings.descending : true;
      settings.sort = name;
      mark();
      update();
    };
    return h("th", { scope: "col", class: column.number ? "number" : null, "data-column": name },
      h("button", { type: "button", onclick: sort }, t(`column.${name}`)));
  });
  const byTime = () => {
    settings.descending = settings.sort === "received" ? !settings.descending : true;
    settings.sort = "received";
    mark();
    update();
  };
  const life = h("th", { scope: "col", class: "life", "data-column": "received" },
    h("button", { type: "button", onclick: byTime }, t("column.received")), axis);
  const row = h("tr", {}, h("th", { scope: "col" }, h("span", { class: "hidden" }, t("column.pin"))), cells, life);
  function mark() {
    for (const cell of row.querySelectorAll("[data-column]")) {
      const here = cell.dataset.column === settings.sort;
      setAttribute(cell, "aria-sort", here && (settings.descending ? "descending" : "ascending"));
    }
  }
  mark();
  return row;
}

function createRow(record, togglePin) {
  const id = record.request_id;
  const pin = h("button", { type: "button", class: "pin", tabindex: -1, title: t("column.pin"), onclick: () => togglePin(id) });
  const link = h("a", { href: `#/request/${encodeURIComponent(id)}`, tabindex: -1, title: id }, shortId(id));
  const bar = s("svg", { class: "bar", preserveAspectRatio: "none", role: "img" });
  bar.addEventListener("pointermove", (event) => tipFor(bar, event));
  bar.addEventListener("pointerleave", hideTip);
  const numbers = Object.values(COLUMNS).slice(2).map(() => h("td", { class: "number" }));
  const row = h("tr", { tabindex: -1, "data-id": id }, h("td", {}, pin), h("td", { class: "id" }, link),
    h("td", {}, h("span", { class: "state" })), numbers, h("td", { class: "life" }, bar));
  row.addEventListener("dblclick", () => { location.hash = link.getAttribute("href"); });
  return row;
}

function fillRow(row, record, frame) {
  const cells = row.children;
  const pinned = settings.pinned.has(record.request_id);
  row.classList.toggle("pinned", pinned);
  setText(cells[0].firstChild, pinned ? "\u25c6" : "\u25c7");
  const badge = cells[2].firstChild;
  setAttribute(badge, "data-state", record.waiting_reason ? "queued" : record.state);
  setText(badge, stateText(record));
  Object.values(COLUMNS).slice(2).forEach((column, index) => setText(cells[index + 3], column.text(record)));
  const bar = row.lastElementChild.firstChild;
  bar.record = record;
  setAttribute(bar, "viewBox", `${(frame.right - frame.length - record.received_ms).toFixed(3)} 0 ${frame.length} 1`);
  const live = LIVE_STATES.has(record.state);
  if (bar.drawn === record && !live) return;
  bar.drawn = record;
  drawBar(bar, record);
}

export function stateText(record) {
  if (record.waiting_reason) return `${named("state", "queued")} \u00b7 ${named("reason", record.waiting_reason)}`;
  if (record.state === "finished" && record.finish_reason) return named("finish", record.finish_reason);
  if (record.state === "failed" && record.status) return `${named("state", "failed")} \u00b7 ${record.status}`;
  return named("state", record.state);
}

function drawBar(bar, record) {
  const stations = stationsOf(record, now());
  const parts = stations.map((each) => s("rect", {
    x: each.start, width: Math.max(0, each.end - each.start), y: 0.18, height: 0.64, class: `f-${each.name}`,
  }));
  const mark = (x, name) => s("line", { x1: x, x2: x, y1: 0.04, y2: 0.96, class: name });
  const first = record.ttft?.total_ms;
  bar.replaceChildren(mark(0, "begin"), ...parts, ...(first === undefined ? [] : [mark(first, "first")]));
  setAttribute(bar, "aria-label", stations.map((each) => `${named("station", each.name)} ${ms(each.end - each.start)}`).join(", "));
}

function tipFor(bar, event) {
  const record = bar.record;
  const box = bar.viewBox.baseVal;
  const { left, width } = bar.getBoundingClientRect();
  const at = box.x + ((event.clientX - left) / width) * box.width;
  const stations = stationsOf(record, now());
  const reach = (box.width / width) * 3; // three pixels: short stations must be found too
  const here = stations.find((each) => at >= each.start && at < each.end)
    ?? stations.find((each) => at >= each.start - reach && at < each.end + reach);
  if (!here) return hideTip();
  const lines = [`${named("station", here.name)}  ${ms(here.end - here.start)}`, `+${ms(here.start)} \u2013 +${ms(here.end)}`];
  if (record.ttft) lines.push(`${t("column.ttft")}  ${ms(record.ttft.total_ms)}`);
  return showTip(lines, event.clientX, event.clientY);
}

function drawAxis(axis, table, frame) {
  const width = axis.clientWidth;
  if (!width) return;
  const step = tickStep(frame.length, width / 90);
  const pixels = (step / frame.length) * width;
  table.style.setProperty("--tick", `${pixels}px`);
  const marks = [];
  for (let back = 0; back <= frame.length; back += step) {
    const x = width - (back / frame.length) * width;
    if (x < 24) break;
    const edge = settings.frozenAt === null ? t("requests.now") : t("requests.frozen");
    const text = back === 0 ? edge : `\u2212${tick(back)}`;
    marks.push(s("text", { x: x - 4, y: 13, "text-anchor": "end" }, text));
  }
  axis.replaceChildren(...marks);
}
