// What the page knows about the server. Sole owner of that state: the feed writes it, views read it and are told of changes.

import { TokenTimes } from "./itl.js";
import { LIVE_STATES } from "./stations.js";

const MOST_REQUESTS = 1000;
const MOST_STEPS = 3000;
const RATE_WINDOW_MS = 4000;
const STATE_CODES = { free: 0, cached: 1, live: 2, shared: 3 };

export const state = {
  connection: { phase: "connecting" },
  system: null,
  requests: new Map(), // id -> summary, oldest first
  steps: [], // oldest first
  queue: [],
  kv: null, // {num_blocks, block_size, live, cached, free, states, owners (who computed it), evictedAt, evictions}
  stats: {},
  tokenTimes: new TokenTimes(),
  tokensPerSecond: 0,
};

const listeners = new Set();
let clockOffset = 0; // performance.now() at the server's zero
let rates = []; // [now_ms, generated tokens]

/** Calls `listener(change)` after each change; gives a function that ends that. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(change) {
  for (const listener of listeners) listener(change);
}

/** Milliseconds since the server's start. Stands still while the connection is lost. */
export function now() {
  const { phase, since } = state.connection;
  return (phase === "live" ? performance.now() : since ?? performance.now()) - clockOffset;
}

export function setConnection(connection) {
  const since = connection.phase === "live" ? undefined : state.connection.since ?? performance.now();
  state.connection = { ...connection, since };
  tell("connection");
}

export function applySnapshot(snapshot) {
  if (state.system?.started_at !== snapshot.system.started_at) forgetAll();
  clockOffset = performance.now() - snapshot.now_ms;
  state.system = snapshot.system;
  const newest = state.steps.at(-1)?.step ?? -1;
  addSteps(snapshot.steps.filter((step) => step.step > newest));
  for (const record of [...snapshot.requests].reverse()) keep(record);
  dropVanished(snapshot.requests);
  state.queue = snapshot.queue;
  state.kv = blocksOf(snapshot.kv);
  state.stats = snapshot.stats ?? {};
  tell("snapshot");
}

export function applyDelta(delta) {
  clockOffset = performance.now() - delta.now_ms;
  addSteps(delta.steps ?? []); // before the requests that ended with them
  for (const record of delta.requests ?? []) keep(record);
  if (delta.queue) state.queue = delta.queue;
  if (delta.kv) changeBlocks(delta.kv);
  if (delta.stats) state.stats = delta.stats;
  measureRate(delta.now_ms);
  tell("delta");
}

function forgetAll() {
  state.requests.clear();
  state.steps = [];
  state.tokenTimes.clear();
  state.stats = {};
  rates = [];
}

function keep(record) {
  state.requests.set(record.request_id, record);
  if (!LIVE_STATES.has(record.state)) state.tokenTimes.forget(record.request_id);
  if (state.requests.size > MOST_REQUESTS) state.requests.delete(state.requests.keys().next().value);
}

/** Requests that ended while the connection was lost and that the snapshot no longer lists must not look alive. */
function dropVanished(listed) {
  const ids = new Set(listed.map((record) => record.request_id));
  for (const [id, record] of state.requests) if (LIVE_STATES.has(record.state) && !ids.has(id)) state.requests.delete(id);
}

function addSteps(steps) {
  for (const step of steps) {
    state.steps.push(step);
    state.tokenTimes.add(step);
  }
  if (state.steps.length > MOST_STEPS) state.steps.splice(0, state.steps.length - MOST_STEPS);
}

function blocksOf(kv) {
  const states = new Uint8Array(kv.num_blocks);
  const owners = new Array(kv.num_blocks).fill(null);
  kv.blocks.forEach(([name, owner], block) => {
    states[block] = STATE_CODES[name];
    owners[block] = owner;
  });
  return { ...kv, blocks: undefined, states, owners, evictedAt: new Float64Array(kv.num_blocks), evictions: 0 };
}

function changeBlocks(change) {
  const { kv } = state;
  Object.assign(kv, { live: change.live, cached: change.cached, free: change.free });
  for (const [block, name, owner] of change.changes ?? []) {
    // A prefix hit keeps the owner, who computed the block; an eviction gives it another one, or none.
    if (kv.states[block] === STATE_CODES.cached && kv.owners[block] !== owner) {
      kv.evictedAt[block] = performance.now();
      kv.evictions += 1;
    }
    kv.states[block] = STATE_CODES[name];
    kv.owners[block] = owner;
  }
}

function measureRate(nowMs) {
  if (typeof state.stats.generation_tokens !== "number") return;
  rates.push([nowMs, state.stats.generation_tokens]);
  while (rates.length > 2 && rates[0][0] < nowMs - RATE_WINDOW_MS) rates.shift();
  const [[from, before], [to, after]] = [rates[0], rates.at(-1)];
  state.tokensPerSecond = to > from ? (1000 * (after - before)) / (to - from) : 0;
}

/** The rate when nothing has come for a while: deltas pause when nothing changes. */
export function currentRate() {
  const last = rates.at(-1);
  return last && now() - last[0] < RATE_WINDOW_MS ? state.tokensPerSecond : 0;
}

/** Newest first. */
export const requestsNewestFirst = () => [...state.requests.values()].sort((a, b) => b.received_ms - a.received_ms);

/** The step with this number, if it is still held. Numbers are consecutive. */
export function stepNumbered(number) {
  const first = state.steps[0]?.step;
  const guess = first === undefined ? undefined : state.steps[number - first];
  return guess?.step === number ? guess : state.steps.find((step) => step.step === number);
}
