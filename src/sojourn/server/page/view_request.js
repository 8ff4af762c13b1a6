// View 2: one request. Fetches its full record, again while it lives, and puts the parts together. Owns the record shown.

import { download, getJson } from "./api.js";
import { facts, h, hideTip, setText } from "./dom.js";
import { clock, count, ms } from "./format.js";
import { named, t } from "./i18n.js";
import { AccountPanel, lifePanel } from "./request_account.js";
import { eventsPanel, prefixPanel, stepsPanel, waitsPanel } from "./request_history.js";
import { TokenStrip } from "./request_tokens.js";
import { LIVE_STATES } from "./stations.js";
import { StepThrough } from "./step_through.js";
import { requestsNewestFirst, state } from "./store.js";
import { stateText } from "./view_requests.js";

const REFETCH_MS = 400;
let lastShown = null;

export function mount(root, [wanted, mode]) {
  const id = wanted ? wanted : lastShown ?? requestsNewestFirst()[0]?.request_id;
  if (!id) {
    root.append(h("p", { class: "empty" }, t("request.none")));
    return {
      update() {
        const newest = requestsNewestFirst()[0];
        if (newest) location.hash = `#/request/${encodeURIComponent(newest.request_id)}`;
      },
    };
  }
  lastShown = id;
  return new RequestView(root, id, mode === "steps");
}

class RequestView {
  constructor(root, id, stepping) {
    this.id = id;
    this.stepping = stepping;
    this.record = null;
    this.choice = 0;
    this.fetchedFor = undefined; // the summary that the record was fetched after
    this.fetchedAt = -Infinity;
    this.alive = true;
    this.body = h("div", {}, h("p", { class: "empty" }, t("request.loading")));
    this.root = root;
    root.append(this.body);
    this.update();
  }

  update(changes) {
    if (changes?.has("theme")) this.parts?.forEach((part) => part.draw?.());
    const summary = state.requests.get(this.id);
    if (this.fetching || (this.record && summary === this.fetchedFor)) return;
    if (performance.now() - this.fetchedAt < REFETCH_MS) return;
    this.fetch(summary);
  }

  async fetch(summary) {
    this.fetching = true;
    this.fetchedAt = performance.now();
    try {
      const record = await getJson(`/v1/requests/${encodeURIComponent(this.id)}`);
      if (!this.alive) return;
      this.fetchedFor = summary;
      this.record = record;
      this.draw();
    } catch (error) {
      if (this.alive && !this.record) this.body.replaceChildren(h("p", { class: "empty" }, error.message));
    } finally {
      this.fetching = false;
    }
  }

  /** The record as one choice sees it: the top level describes the choice that spoke first. */
  view() {
    const { record } = this;
    const choice = record.choices?.[this.choice];
    return choice && record.choices.length > 1 ? { ...record, ...choice, request_id: record.request_id } : record;
  }

  draw() {
    const record = this.view();
    const live = LIVE_STATES.has(record.state);
    if (this.parts && this.shape === shapeOf(record, this.stepping)) {
      this.parts.forEach((part) => part.update(record));
    } else {
      this.destroyParts();
      this.build(record);
    }
    this.drawHeader(record, live);
  }

  build(record) {
    this.shape = shapeOf(record, this.stepping);
    this.header = h("header", { class: "request-header" });
    const strip = new TokenStrip(record);
    const sums = new AccountPanel(record);
    const walk = this.stepping ? new StepThrough(record) : null;
    const steps = new Rebuilt(stepsPanel, record);
    const sides = [eventsPanel, waitsPanel, prefixPanel].map((make) => new Rebuilt(make, record));
    const life = new Rebuilt(lifePanel, record);
    this.parts = [...(walk ? [walk] : []), sums, life, strip, steps, ...sides];
    this.body.replaceChildren(this.header, ...(walk ? [walk.element] : []),
      h("div", { class: "columns" }, sums.element, life.element), strip.element,
      h("div", { class: "columns" }, steps.element, h("div", { class: "stack" }, sides.map((side) => side.element))));
    this.parts.forEach((part) => part.attach?.());
  }

  drawHeader(record, live) {
    const key = JSON.stringify([record.state, record.completion_tokens, record.ttft?.total_ms, record.e2e_ms, this.stepping, this.choice]);
    if (this.header.dataset.key === key) return;
    const focused = this.header.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    this.header.dataset.key = key;
    const base = `#/request/${encodeURIComponent(this.id)}`;
    const path = `/v1/requests/${encodeURIComponent(this.id)}`;
    const action = (name, text, run) => h("button", { type: "button", "data-action": name, onclick: run }, text);
    const save = (from, suffix) => () => download(from, `${this.id}${suffix}.json`)
      .catch((error) => setText(this.header.querySelector(".problem"), error.message));
    const walk = h("a", { class: "button", "data-action": "walk", href: this.stepping ? base : `${base}/steps`,
      "aria-pressed": String(this.stepping) }, t("request.step_through"));
    this.header.replaceChildren(
      h("div", { class: "title" }, h("h1", {}, this.id), h("span", { class: "state", "data-state": record.waiting_reason ? "queued" : record.state }, stateText(record)),
        h("span", { class: "grow" }), h("span", { class: "problem", role: "alert" }), this.choices(record), walk,
        action("json", t("request.json"), save(path, "")), action("perfetto", t("request.perfetto"), save(`${path}/trace`, ".trace"))),
      facts(headline(record, live)));
    if (focused) this.header.querySelector(`[data-action="${focused}"]`)?.focus();
  }

  choices(record) {
    const all = this.record.choices ?? [];
    if (all.length < 2) return null;
    const change = (event) => {
      this.choice = Number(event.target.value);
      this.destroyParts();
      this.build(this.view());
      this.drawHeader(this.view(), LIVE_STATES.has(record.state));
    };
    return h("select", { "aria-label": t("request.choice"), "data-action": "choice", onchange: change },
      all.map((each, index) => h("option", { value: index, selected: index === this.choice }, `${t("request.choice")} ${each.index}`)));
  }

  destroyParts() {
    this.parts?.forEach((part) => part.destroy?.());
    this.parts = null;
  }

  destroy() {
    this.alive = false;
    this.destroyParts();
    hideTip();
  }
}

/** What decides whether the view must be laid out anew rather than refreshed. */
const shapeOf = (record, stepping) => `${stepping} ${Boolean(record.choices?.length)}`;

function headline(record, live) {
  const cached = record.cached_tokens ? ` (${t("request.cached", { count: count(record.cached_tokens) })})` : "";
  const pairs = [
    ["ttft", ms(record.ttft?.total_ms)], ["tpot", ms(record.tpot_ms)], ["e2e", live ? t("request.running") : ms(record.e2e_ms)],
    ["prompt", count(record.prompt_tokens) + cached], ["output", count(record.completion_tokens)],
    ["finish", record.finish_reason ? named("finish", record.finish_reason) : "\u2013"], ["model", record.model],
    ["endpoint", record.endpoint], ["received_at", clock(record.received_at)], ["priority", count(record.priority)],
  ];
  if (record.client_request_id && !record.request_id.endsWith(record.client_request_id)) {
    pairs.push(["client_id", record.client_request_id]);
  }
  if (record.state_when_left) pairs.push(["left", named("state", record.state_when_left)]);
  if (record.status >= 400) pairs.push(["status", String(record.status)]);
  if (record.error) pairs.push(["error", record.error]);
  if (record.stream) {
    pairs.push(["stream", t("request.stream", { writes: count(record.stream.writes), blocked: ms(record.stream.blocked_ms) })]);
  }
  return pairs.map(([name, value]) => [t(`fact.${name}`), value]);
}

/** A part that is cheap enough to be made again when its record changes, and is left alone when it does not. */
class Rebuilt {
  constructor(make, record) {
    this.make = make;
    this.element = make(record);
  }

  update(record) {
    const next = this.make(record);
    if (next.isEqualNode(this.element)) return;
    const scrolled = this.element.querySelector(".scroll")?.scrollTop;
    const focused = [...this.element.querySelectorAll("a, button, summary")].indexOf(document.activeElement);
    this.element.replaceWith(next);
    this.element = next;
    if (scrolled) next.querySelector(".scroll").scrollTop = scrolled;
    if (focused >= 0) next.querySelectorAll("a, button, summary")[focused]?.focus();
  }
}
