// View 6: how times are spread over the requests this page holds, with percentiles. A bar leads to the requests behind it.

import { h, hideTip, panel, roving, s, setText, showTip } from "./dom.js";
import { count, ms, percentile, tick } from "./format.js";
import { t } from "./i18n.js";
import { queuedMs } from "./stations.js";
import { state } from "./store.js";
import { filterTo } from "./view_requests.js";

const BINS = 32;
const [WIDTH, HEIGHT, BASE, TOP] = [640, 230, 204, 44];
const LEAST_MS = 0.05; // shorter times share the first bin
const METRICS = { ttft: "prefill", itl: "decode", e2e: "muted", queue: "queue" };

/** The samples of a metric as [value, id of the request]. */
function samplesOf(metric) {
  if (metric === "itl") return state.tokenTimes.samples.map((each) => [each.ms, each.id]);
  const value = {
    ttft: (record) => record.ttft?.total_ms,
    e2e: (record) => (record.state === "finished" ? record.e2e_ms : null),
    queue: (record) => (record.state === "queued" ? null : queuedMs(record)),
  }[metric];
  return [...state.requests.values()].map((record) => [value(record), record.request_id]).filter(([each]) => each !== null && each !== undefined);
}

/** Bins of equal width on a logarithmic axis, which spans the samples. */
function binned(samples) {
  const values = samples.map(([value]) => Math.max(value, LEAST_MS)).sort((a, b) => a - b);
  const low = values[0] * 0.999;
  const high = Math.max(values.at(-1) * 1.001, low * 1.5);
  const ratio = Math.log(high / low) / BINS;
  const bins = Array.from({ length: BINS }, (_, index) => ({ from: low * Math.exp(index * ratio), to: low * Math.exp((index + 1) * ratio), number: 0, ids: new Set() }));
  for (const [value, id] of samples) {
    const index = Math.min(BINS - 1, Math.max(0, Math.floor(Math.log(Math.max(value, LEAST_MS) / low) / ratio)));
    bins[index].number += 1;
    bins[index].ids.add(id);
  }
  return { values, low, high, bins };
}

export function mount(root) {
  const charts = Object.keys(METRICS).map((metric) => new Chart(metric));
  root.append(h("h1", { class: "hidden" }, t("tab.histograms")), h("p", { class: "hint" }, t("histograms.hint")),
    h("div", { class: "columns even" }, charts.map((chart) => chart.element)));
  function update(changes) {
    if (changes && !changes.has("delta") && !changes.has("snapshot")) return;
    charts.forEach((chart) => chart.update());
  }
  update();
  return { update, destroy: hideTip };
}

class Chart {
  constructor(metric) {
    this.metric = metric;
    this.figures = h("div", { class: "legend figures" });
    this.bars = s("g", {});
    this.marks = s("g", { "aria-hidden": "true" });
    this.svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "histogram", role: "group", "aria-label": t(`histograms.${metric}`) }, this.bars, this.marks);
    this.element = panel(t(`histograms.${metric}`), this.figures, this.svg);
    this.element.dataset.metric = metric;
    this.settle = roving(this.bars, "rect.hit", (bar, event) => {
      if (event.key === "Enter" || event.key === " ") this.open(bar);
    });
    this.rects = Array.from({ length: BINS }, (_, index) => this.makeBar(index));
  }

  makeBar(index) {
    const wide = WIDTH / BINS;
    const bar = s("rect", { x: index * wide + 0.5, width: wide - 1.5, class: `f-${METRICS[this.metric]}` });
    const hit = s("rect", { x: index * wide, width: wide, y: TOP, height: BASE - TOP, class: "hit", role: "button" });
    const tell = () => this.bins && showTip(this.describe(index), hit.getBoundingClientRect().left, hit.getBoundingClientRect().bottom - 40);
    hit.addEventListener("pointerenter", tell);
    hit.addEventListener("focus", tell);
    hit.addEventListener("pointerleave", hideTip);
    hit.addEventListener("blur", hideTip);
    hit.addEventListener("click", () => this.open(hit));
    hit.index = index;
    this.bars.append(bar, hit);
    return [bar, hit];
  }

  describe(index) {
    const { from, to, number, ids } = this.bins[index];
    return [`${ms(from)} \u2013 ${ms(to)}`, t(this.metric === "itl" ? "histograms.tokens" : "histograms.requests", { count: count(number), requests: count(ids.size) })];
  }

  open(hit) {
    const { from, to, ids } = this.bins[hit.index];
    const held = new Set(ids);
    filterTo({ text: `${t(`column.${this.metric}`)} ${ms(from)} \u2013 ${ms(to)}`, keep: (record) => held.has(record.request_id) });
    location.hash = "#/requests";
  }

  update() {
    const samples = samplesOf(this.metric);
    if (!samples.length) {
      setText(this.figures, t("histograms.none"));
      this.rects.forEach(([, hit]) => hit.setAttribute("tabindex", -1));
      return;
    }
    const { values, low, high, bins } = binned(samples);
    this.bins = bins;
    const most = Math.max(...bins.map((bin) => bin.number));
    this.rects.forEach(([bar, hit], index) => {
      const { number } = bins[index];
      const tall = number ? Math.max(2, ((BASE - TOP) * number) / most) : 0;
      bar.setAttribute("y", BASE - tall);
      bar.setAttribute("height", tall);
      hit.classList.toggle("hit", number > 0);
      hit.classList.toggle("no-hit", number === 0);
      hit.setAttribute("aria-label", this.describe(index).join(", "));
      if (!number) hit.removeAttribute("tabindex");
      else if (!hit.hasAttribute("tabindex")) hit.setAttribute("tabindex", -1);
    });
    this.settle();
    this.drawMarks(values, low, high);
  }

  drawMarks(values, low, high) {
    const place = (value) => (WIDTH * Math.log(value / low)) / Math.log(high / low);
    const shares = [0.5, 0.9, 0.99].map((share) => [`p${share * 100}`, percentile(values, share)]);
    const texts = [[t("histograms.count"), count(values.length)], ...shares.map(([name, value]) => [name, ms(value)])];
    this.figures.replaceChildren(...texts.map(([name, value]) => h("span", {}, name, " ", h("b", { class: "number" }, value))));
    const lines = shares.map(([name, value], index) => {
      const x = place(value);
      const late = x > WIDTH - 34;
      return [s("line", { x1: x, x2: x, y1: 3 + index * 13, y2: BASE, class: "mark" }),
        s("text", { x: late ? x - 4 : x + 4, y: 11 + index * 13, class: "mark", "text-anchor": late ? "end" : "start" }, name)];
    });
    const ticks = logTicks(low, high).map((value) => [
      s("line", { x1: place(value), x2: place(value), y1: BASE, y2: BASE + 4, class: "base" }),
      s("text", { x: place(value), y: BASE + 18, "text-anchor": "middle" }, tick(value)),
    ]);
    this.marks.replaceChildren(s("line", { x1: 0, x2: WIDTH, y1: BASE + 0.5, y2: BASE + 0.5, class: "base" }), ...lines.flat(), ...ticks.flat());
  }
}

/** 1, 2, 5 and their tenfolds within a range, thinned to what an axis can carry. */
function logTicks(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
    for (const factor of [1, 2, 5]) all.push(factor * 10 ** power);
  }
  const inside = all.filter((value) => value > low * 1.02 && value < high * 0.98);
  return inside.length > 9 ? inside.filter((value) => Number.isInteger(Math.round(Math.log10(value) * 1e9) / 1e9)) : inside;
}
