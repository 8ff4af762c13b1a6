// Step through it: one request walked through its stations, one stop after the other. At each stop: the tokens so far, the KV
// positions that live, and what runs where. Owns only the stop shown.

import { h, setAttribute, setText } from "./dom.js";
import { count, ms } from "./format.js";
import { named, t } from "./i18n.js";
import { LIVE_STATES } from "./stations.js";

const MOST_CELLS = 400; // beyond that, one cell stands for several tokens
const FRONTEND = ["receive", "render", "tokenize", "send"];
const BACK = ["return", "detokenize", "stream"];

/**
 * The stops of a record: {name, number, at, kv, prompt, output, fresh, active, step}. `kv` is how many positions are held,
 * `prompt` and `output` how many tokens exist, `fresh` the range of positions this stop computed.
 */
export function stopsOf(record) {
  const prompt = record.prompt_tokens ?? 0;
  const stops = [{ name: "arrive", at: 0, kv: 0, prompt, output: 0, active: [...FRONTEND, "queue"] }];
  const cached = record.cached_tokens ?? 0;
  if (cached) stops.push({ name: "hit", at: record.steps?.[0]?.start_ms ?? 0, kv: cached, prompt, output: 0, fresh: [0, cached - 1], active: ["prefix"] });
  const numbers = { prefill: 0, decode: 0, recompute: 0 };
  const losses = [...(record.preemptions ?? [])];
  let output = 0;
  for (const step of record.steps ?? []) {
    while (losses.length && losses[0].at_ms <= step.start_ms) {
      stops.push({ name: "preempted", at: losses[0].at_ms, kv: 0, prompt, output, active: ["preempted"] });
      losses.shift();
    }
    const sampled = step.to + 1 >= prompt + output;
    if (sampled) output += 1;
    numbers[step.kind] += 1;
    stops.push({
      name: step.kind, number: numbers[step.kind], at: step.start_ms + step.duration_ms, step, kv: step.to + 1, prompt, output, sampled,
      fresh: [step.from, step.to], active: sampled ? [step.kind, "sample", ...BACK] : [step.kind],
    });
  }
  if (!LIVE_STATES.has(record.state)) {
    stops.push({ name: record.state === "finished" ? "finish" : "left", at: record.e2e_ms, kv: 0, prompt, output, active: ["finish"] });
  }
  return stops;
}

export class StepThrough {
  constructor(record) {
    this.at = 0;
    this.title = h("strong", {});
    this.explain = h("p", { class: "explain", "aria-live": "polite" });
    this.where = h("div", { class: "where" });
    this.track = h("ol", { class: "stops", role: "list" });
    this.tokens = h("div", { class: "token-rows" });
    this.counter = h("span", { class: "number counter" });
    this.slider = h("input", { type: "range", min: 0, value: 0, "aria-label": t("walk.slider"), oninput: () => this.go(Number(this.slider.value)) });
    const button = (text, by, name) => h("button", { type: "button", class: name, onclick: () => this.go(this.at + by) }, text);
    this.previous = button(`\u2190 ${t("walk.previous")}`, -1, "previous");
    this.next = button(`${t("walk.next")} \u2192`, 1, "next");
    this.element = h("section", { class: "panel walk", tabindex: 0, "aria-label": t("request.step_through") },
      h("div", { class: "panel-title" }, h("h2", {}, t("request.step_through")), this.previous, this.counter, this.next, this.slider),
      this.track, h("div", { class: "walk-body" }, h("div", {}, this.title, this.explain, this.tokens), this.where));
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.update(record);
  }

  key(event) {
    if (event.target === this.slider || event.ctrlKey || event.metaKey || event.altKey) return;
    const goal = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: this.stops.length - 1 }[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    this.go(goal);
  }

  update(record) {
    this.record = record;
    this.stops = stopsOf(record);
    setAttribute(this.slider, "max", this.stops.length - 1);
    this.go(Math.min(this.at, this.stops.length - 1));
  }

  go(index) {
    if (index < 0 || index >= this.stops.length) return;
    this.at = index;
    const stop = this.stops[index];
    this.slider.value = index;
    this.previous.disabled = index === 0;
    this.next.disabled = index === this.stops.length - 1;
    setText(this.counter, `${index + 1} / ${this.stops.length}`);
    setText(this.title, `${nameOf(stop)} \u00b7 +${ms(stop.at)}`);
    setText(this.explain, this.sentence(stop));
    this.drawTrack();
    this.drawTokens(stop);
    this.drawWhere(stop);
  }

  sentence(stop) {
    const values = {
      prompt: count(stop.prompt), output: count(stop.output), kv: count(stop.kv),
      from: count(stop.fresh?.[0]), to: count(stop.fresh?.[1]), others: count((stop.step?.batch_requests ?? 1) - 1),
      reason: named("finish", this.record.finish_reason ?? this.record.state), state: named("state", this.record.state_when_left ?? "running"),
    };
    const main = t(`walk.${stop.name}`, values);
    const sampled = stop.step ? ` ${t(stop.sampled ? "walk.sampled" : "walk.not_sampled", values)}` : "";
    const company = stop.step?.batch_requests > 1 ? ` ${t("walk.company", values)}` : "";
    return main + sampled + company;
  }

  /** The stops around this one, as a numbered list: all of them when they are few. */
  drawTrack() {
    const room = 9;
    const from = Math.max(0, Math.min(this.at - 4, this.stops.length - room));
    const items = this.stops.slice(from, from + room).map((stop, offset) => {
      const index = from + offset;
      return h("li", { "aria-current": index === this.at ? "step" : null, class: index < this.at ? "past" : null },
        h("button", { type: "button", tabindex: -1, onclick: () => this.go(index) }, h("b", {}, String(index + 1)), nameOf(stop)));
    });
    this.track.replaceChildren(...items);
  }

  drawTokens(stop) {
    const total = this.record.prompt_tokens + Math.max(this.record.completion_tokens ?? 0, stop.output);
    const per = Math.max(1, Math.ceil(total / MOST_CELLS));
    const rows = [
      [t("walk.input"), stop.prompt, (position) => (isFresh(stop, position, per) ? "fresh" : "known"), 0],
      [t("walk.output"), Math.max(this.record.completion_tokens ?? 0, stop.output),
        (position) => this.outputClass(stop, position, per), stop.prompt],
    ].map(([label, length, classOf, offset]) => tokenRow(label, length, per, (index) => classOf(index + offset)));
    const kv = tokenRow(t("walk.kv"), total, per, (position) => {
      if (position >= stop.kv) return "vacant";
      return isFresh(stop, position, per) ? "kv fresh" : "kv";
    });
    const note = per > 1 ? h("small", {}, t("walk.scale", { count: per })) : null;
    this.tokens.replaceChildren(...rows, kv, h("p", { class: "quiet" }, t("walk.live_kv", { kv: count(stop.kv) }), " ", note));
  }

  outputClass(stop, position, per) {
    const index = position - stop.prompt;
    if (index >= stop.output) return "pending";
    return stop.sampled && stop.output - 1 >= index && stop.output - 1 < index + per ? "sampled" : "known";
  }

  drawWhere(stop) {
    const box = (name, stations) => h("div", { class: "process" }, h("h3", {}, t(`where.${name}`)), h("ul", {}, stations.map((station) =>
      stationItem(station, stop.active.includes(station)))));
    const extra = ["decode", "recompute", "preempted"].filter((name) => stop.active.includes(name));
    this.where.replaceChildren(box("frontend", [...FRONTEND, ...BACK, "finish"]),
      box("engine", ["queue", "prefix", ...(extra.length ? extra : ["prefill"]), "sample"]));
  }
}

function stationItem(station, active) {
  const item = h("li", { class: active ? "active" : null }, named("station", station));
  if (active) item.style.borderLeftColor = `var(--c-${station})`;
  return item;
}

const isFresh = (stop, position, per) => Boolean(stop.fresh) && position + per > stop.fresh[0] && position <= stop.fresh[1];

const nameOf = (stop) => t(`walk_stop.${stop.name}`, { number: stop.number ?? "" }).trim();

function tokenRow(label, length, per, classOf) {
  const cells = Math.ceil(length / per);
  const drawn = Array.from({ length: cells }, (_, index) => h("i", { class: `cell ${classOf(index * per)}` }));
  return h("div", { class: "token-row" }, h("span", { class: "label" }, label), h("div", { class: "cells", role: "img", "aria-label": `${label}: ${count(length)}` }, drawn));
}
