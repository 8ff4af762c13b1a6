// What happened to a request: its steps, events, waits, and the blocks of its prompt. Views of a record.

import { h, panel, s } from "./dom.js";
import { count, fixed, ms, percentile, shortId } from "./format.js";
import { named, t } from "./i18n.js";
import { swatch } from "./request_account.js";
import { LIVE_STATES } from "./stations.js";

const MOST_SINGLE = 8; // a longer run of decode steps becomes one line

/** Runs of decode steps become one line: their number, their times, the batches they were in. */
function lines(steps) {
  const groups = [];
  for (const step of steps) {
    const last = groups.at(-1);
    if (step.kind === "decode" && last?.[0].kind === "decode") last.push(step);
    else groups.push([step]);
  }
  return groups.flatMap((group) => (group.length > MOST_SINGLE ? [group] : group.map((step) => [step])));
}

export function stepsPanel(record) {
  const steps = record.steps ?? [];
  const head = ["step", "begins", "takes", "kind", "positions", "tokens", "batch"].map((name) =>
    h("th", { scope: "col", class: ["kind"].includes(name) ? null : "number" }, t(`column.${name}`)));
  const rows = lines(steps).map((group) => (group.length === 1 ? stepRow(group[0]) : runRow(group)));
  return panel(t("request.steps"), steps.length
    ? h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": t("request.steps") },
      h("table", { class: "steps" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)))
    : h("p", { class: "empty" }, t("request.no_steps")));
}

const link = (step) => h("a", { href: `#/steps/${step}` }, String(step));
const kindOf = (kind) => [swatch(kind), named("kind", kind)];
const row = (cells) => h("tr", {}, cells.map((cell, index) => h("td", { class: index === 3 ? null : "number" }, cell)));

function stepRow(step) {
  return row([link(step.step), ms(step.start_ms), ms(step.duration_ms), kindOf(step.kind),
    step.from === step.to ? count(step.from) : `${count(step.from)}\u2013${count(step.to)}`, count(step.tokens),
    t("request.batch", { tokens: count(step.batch_tokens), requests: count(step.batch_requests) })]);
}

function runRow(group) {
  const [first, last] = [group[0], group.at(-1)];
  const times = group.map((step) => step.duration_ms).sort((a, b) => a - b);
  const mean = group.reduce((sum, step) => sum + step.batch_requests, 0) / group.length;
  return row([[link(first.step), "\u2013", link(last.step)], ms(first.start_ms), t("request.median", { time: ms(percentile(times, 0.5)) }),
    kindOf("decode"), `${count(first.from)}\u2013${count(last.to)}`, count(group.length), t("request.mean_batch", { requests: fixed(mean, 1) })]);
}

/** The turning points of a life, oldest first. */
export function eventsOf(record) {
  const events = [[0, t("event.received")]];
  const queue = record.stations?.find((each) => each.name === "queue");
  if (queue) events.push([queue.start_ms, t("event.queued")]);
  const first = record.steps?.[0];
  if (first) events.push([first.start_ms, t("event.scheduled", { step: first.step })]);
  if (record.cached_tokens) events.push([first?.start_ms ?? 0, t("event.hit", { tokens: count(record.cached_tokens) })]);
  for (const each of record.preemptions ?? []) {
    events.push([each.at_ms, t("event.preempted", { tokens: count(each.lost_tokens) })]);
    if (each.resumed_ms) events.push([each.resumed_ms, t("event.resumed")]);
  }
  if (record.ttft) events.push([record.ttft.total_ms, t("event.first")]);
  if (record.state === "aborted") events.push([record.e2e_ms ?? 0, t("event.left", { state: named("state", record.state_when_left ?? "running") })]);
  else if (!LIVE_STATES.has(record.state)) events.push([record.e2e_ms, t("event.finished", { reason: named("finish", record.finish_reason ?? record.state) })]);
  return events.sort((a, b) => a[0] - b[0]);
}

export function eventsPanel(record) {
  return panel(t("request.events"), h("ol", { class: "events" }, eventsOf(record).map(([at, text]) =>
    h("li", {}, h("span", { class: "number" }, `+${ms(at)}`), h("span", {}, text)))));
}

export function waitsPanel(record) {
  const waits = record.waits ?? [];
  if (!waits.length) return panel(t("request.waits"), h("p", { class: "quiet" }, t("request.no_waits")));
  const longest = Math.max(...waits.map((each) => each.duration_ms), 0.001);
  return panel(t("request.waits"), h("table", { class: "waits" }, h("tbody", {}, waits.map((each) =>
    h("tr", {},
      h("th", { scope: "row" }, named("reason", each.reason), h("small", {}, named("reason_why", each.reason))),
      h("td", { class: "number" }, ms(each.duration_ms)),
      h("td", { class: "share" }, s("svg", { class: "share", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
        s("rect", { width: (100 * each.duration_ms) / longest, height: 1, class: "f-queue" }))))))));
}

/** The prompt's blocks in order: found in the cache, or computed. */
export function prefixPanel(record) {
  const { prefix = {}, kv_blocks: held } = record;
  const blocks = prefix.blocks ?? [];
  const texts = [t("prefix.hits", { blocks: count(prefix.hit_blocks ?? 0), tokens: count(prefix.hit_tokens ?? 0) })];
  if (prefix.stopped) texts.push(`${named("stopped", prefix.stopped)}.`);
  const source = prefix.from_request
    ? h("span", {}, t("prefix.from"), " ", h("a", { class: "id", href: `#/request/${encodeURIComponent(prefix.from_request)}`, title: prefix.from_request },
      shortId(prefix.from_request)))
    : null;
  const cells = blocks.map((each, index) => h("span", {
    class: `block ${each.state === "hit" ? "is-hit" : "is-computed"}`,
    title: t(each.state === "hit" ? "prefix.hit" : "prefix.computed", { index: index + 1, block: each.block }),
  }));
  return panel(t("request.prefix"),
    blocks.length ? h("div", { class: "ruler", role: "img", "aria-label": texts.join(" ") }, cells) : null,
    blocks.length ? h("div", { class: "legend" }, h("span", {}, swatch("prefix"), t("prefix.legend_hit")), h("span", {}, swatch("prefill"), t("prefix.legend_computed"))) : null,
    h("p", { class: "quiet" }, texts.join(" "), " ", source),
    held ? h("p", { class: "quiet" }, t("prefix.held", { peak: count(held.peak), end: count(held.at_finish ?? held.table?.length ?? 0) })) : null);
}
