// Names of the record and how they are drawn. Each name has one colour, --c-<name> in style.css, wherever it appears.

export const STATIONS = [
  "receive", "render", "tokenize", "send", "queue", "prefix", "prefill", "stall", "preempted", "sample", "decode",
  "return", "detokenize", "stream", "finish",
];

/** Which process works at a station: the HTTP front end or the engine. */
export const ENGINE_STATIONS = new Set(["queue", "prefix", "prefill", "stall", "preempted", "sample", "decode"]);

export const CAUSES = ["decode", "prefill_in_step", "preempted", "slow_client", "gc"];
export const KINDS = ["prefill", "decode", "recompute"];
export const LIVE_STATES = new Set(["receiving", "queued", "running"]);

/** Colour of a cause of slow tokens: that of the station or kind it comes from. */
export const causeColour = (cause) => (cause === "prefill_in_step" ? "prefill" : cause);

const cache = new Map();
const probe = document.createElement("span");
probe.hidden = true;

/** A colour of the style sheet for a canvas, as the theme in force resolves it. */
export function colour(name) {
  if (!cache.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(--${name})`;
    cache.set(name, getComputedStyle(probe).color);
  }
  return cache.get(name);
}

/** After a change of theme. */
export function forgetColours() {
  cache.clear();
}

/** The stations of a record in order, as {name, process, start, end}. What still goes on reaches to now. */
export function stationsOf(record, nowMs) {
  const list = (record.stations ?? []).map((each) => ({
    name: each.name, process: each.process, start: each.start_ms, end: each.start_ms + each.duration_ms,
  }));
  const last = list.at(-1);
  if (last && LIVE_STATES.has(record.state)) last.end = Math.max(last.end, nowMs - record.received_ms);
  return list;
}

/** Where a request's bar ends, milliseconds from its receive. */
export function lengthOf(record, nowMs) {
  if (LIVE_STATES.has(record.state)) return Math.max(0, nowMs - record.received_ms);
  const last = record.stations?.at(-1);
  return record.e2e_ms ?? (last ? last.start_ms + last.duration_ms : 0);
}

/** The steps that gave a record's tokens, in order. A step that recomputes lost positions and goes on has two entries. */
export function samplingSteps(record) {
  const found = [];
  for (const step of record.steps ?? []) {
    if (step.to + 1 >= record.prompt_tokens + found.length) found.push(step);
  }
  return found;
}

/** Time before the engine first took it up. */
export function queuedMs(record) {
  const stations = record.stations?.filter((each) => each.name === "queue") ?? [];
  return stations.length ? stations.reduce((sum, each) => sum + each.duration_ms, 0) : null;
}
