// Where a request's time went: the sum of its parts with the remainder, and the stations of its life in order. Views of a record.

import { h, panel, s, segmented, setText } from "./dom.js";
import { ms, percent, tick, tickStep } from "./format.js";
import { named, t } from "./i18n.js";
import { STATIONS, lengthOf, stationsOf } from "./stations.js";
import { now } from "./store.js";

/** Parts that share a colour and a place in every stack, in the order a request meets them. */
function partsOf(account) {
  const known = STATIONS.filter((name) => account.parts[name] !== undefined);
  const others = Object.keys(account.parts).filter((name) => !STATIONS.includes(name));
  return [...known, ...others].map((name) => [name, account.parts[name]]);
}

/** The TTFT or the whole time as one bar and one table. Owns which of the two is shown, for every request. */
export class AccountPanel {
  static which = "ttft";

  constructor(record) {
    const pick = (value) => {
      AccountPanel.which = value;
      this.update(this.record);
    };
    const choices = [["ttft", t("request.ttft")], ["e2e", t("request.e2e")]];
    this.title = h("h2", {});
    this.body = h("div", {});
    this.element = h("section", { class: "panel account" },
      h("div", { class: "panel-title" }, this.title, segmented(t("request.account"), choices, AccountPanel.which, pick)), this.body);
    this.update(record);
  }

  update(record) {
    this.record = record;
    setText(this.title, t(`request.${AccountPanel.which}_account`));
    const body = accountBody(record[AccountPanel.which], AccountPanel.which);
    if (body.isEqualNode(this.body)) return;
    this.body.replaceWith(body);
    this.body = body;
  }
}

function accountBody(account, which) {
  if (!account) return h("div", {}, h("p", { class: "empty" }, t(`request.${which}_open`)));
  const { total_ms: total, unattributed_ms: rest } = account;
  const parts = partsOf(account);
  const rows = [...parts, ["unattributed", rest]].map(([name, value]) =>
    h("tr", { class: value === 0 ? "zero" : null, "data-part": name },
      h("th", { scope: "row" }, swatch(name), named("station", name)),
      h("td", { class: "number" }, ms(value)),
      h("td", { class: "number" }, percent(value, total)),
      h("td", { class: "share" }, share(name, value, total))));
  rows.push(h("tr", { class: "total" }, h("th", { scope: "row" }, t("request.total")), h("td", { class: "number" }, ms(total)),
    h("td", { class: "number" }, "100%"), h("td", {})));
  return h("div", {}, stack([...parts, ["unattributed", Math.max(0, rest)]], total),
    h("table", { class: "account" }, h("tbody", {}, rows)));
}

export const swatch = (name) => s("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" },
  s("rect", { width: 10, height: 10, class: `f-${name}` }));

function share(name, value, total) {
  return s("svg", { class: "share", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { width: total ? Math.max(0, (100 * value) / total) : 0, height: 1, class: `f-${name}` }));
}

/** One bar, all parts, with a name on those that are wide enough to carry it. */
function stack(parts, total) {
  let x = 0;
  const shown = parts.filter(([, value]) => value > 0).map(([name, value]) => {
    const width = (100 * value) / total;
    const label = width > 14 ? h("span", {}, `${named("station", name)} ${percent(value, total)}`) : null;
    const cell = h("div", { class: `stack-part b-${name}`, title: `${named("station", name)} ${ms(value)} ${percent(value, total)}` }, label);
    cell.style.left = `${x}%`;
    cell.style.width = `${width}%`;
    x += width;
    return cell;
  });
  const text = parts.map(([name, value]) => `${named("station", name)} ${ms(value)}`).join(", ");
  return h("div", { class: "stacked", role: "img", "aria-label": text }, shown);
}

/** One line for each station, placed on the axis of the request's life. */
export function lifePanel(record) {
  const stations = stationsOf(record, now());
  const total = Math.max(lengthOf(record, now()), ...stations.map((each) => each.end), 0.001);
  const order = [...new Set(stations.map((each) => each.name))];
  const first = record.ttft?.total_ms;
  const rows = order.map((name) => {
    const own = stations.filter((each) => each.name === name);
    const bars = own.map((each) => s("rect", {
      x: (100 * each.start) / total, width: (100 * (each.end - each.start)) / total, height: 1, class: `f-${name}`,
    }));
    const begin = s("line", { x1: (100 * own[0].start) / total, x2: (100 * own[0].start) / total, y2: 1, class: `s-${name}` });
    const mark = first === undefined ? [] : [s("line", { x1: (100 * first) / total, x2: (100 * first) / total, y2: 1, class: "first" })];
    const process = own[0].process;
    return h("tr", { "data-station": name },
      h("th", { scope: "row" }, swatch(name), named("station", name)),
      h("td", { class: "process" }, process ? named("process", process) : ""),
      h("td", { class: "number" }, ms(own[0].start)),
      h("td", { class: "number" }, ms(own.reduce((sum, each) => sum + each.end - each.start, 0))),
      h("td", { class: "life" }, s("svg", { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, begin, bars, mark)));
  });
  const head = h("tr", {}, ["station", "process", "begins", "takes"].map((name) =>
    h("th", { scope: "col", class: name === "begins" || name === "takes" ? "number" : null }, t(`column.${name}`))),
  h("th", { scope: "col", class: "life" }, axisOf(total)));
  return panel(t("request.life"), h("table", { class: "life" }, h("thead", {}, head), h("tbody", {}, rows)));
}

function axisOf(total) {
  const step = tickStep(total, 4);
  const marks = [];
  for (let at = 0; at < total * 0.97; at += step) {
    const text = h("span", {}, at === 0 ? "0" : tick(at));
    text.style.left = `${(100 * at) / total}%`;
    marks.push(text);
  }
  return h("div", { class: "life-axis" }, marks);
}
