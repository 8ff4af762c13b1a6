// View 3: the engine's steps, a column each: tokens by kind against the budget, time, and the KV and queue beneath. Owns the
// step selected and the stretch of steps shown.

import { h, panel, segmented, setAttribute } from "./dom.js";
import { count, ms, percent, shortId } from "./format.js";
import { named, t } from "./i18n.js";
import { CanvasPicker } from "./picker.js";
import { swatch } from "./request_account.js";
import { KINDS, colour } from "./stations.js";
import { state, stepNumbered } from "./store.js";

const LANES = { tokens: [0, 170], time: [186, 76], kv: [278, 56] }; // top and height
const HEIGHT = 336;
const settings = { pitch: 8, scale: "tallest", follow: true, end: 0 };
let selected = null; // number of a step

const visible = (width) => Math.max(1, Math.floor(width / settings.pitch));

export function mount(root, [wanted]) {
  if (wanted !== undefined && stepNumbered(Number(wanted))) select(Number(wanted), true);
  const picker = new CanvasPicker({
    label: t("steps.label"), height: HEIGHT,
    count: () => state.steps.length,
    selected: () => (selected === null ? -1 : state.steps.indexOf(stepNumbered(selected))),
    select: (index) => {
      select(state.steps[index].step, false);
      update();
    },
    indexAt: (x, y, width) => startAt(width) + Math.floor(x / settings.pitch),
    describe: (index) => describe(state.steps[index]),
    draw: (context, width, height, hovered) => paint(context, width, hovered),
  });
  const detail = h("div", { class: "step-detail" });
  const slider = h("input", { type: "range", min: 1, "aria-label": t("steps.position"), oninput: () => move(Number(slider.value)) });
  const follow = h("button", { type: "button", onclick: () => setFollow(!settings.follow) }, t("steps.follow"));
  function setFollow(on) {
    settings.follow = on;
    if (on) selected = null;
    update();
  }
  function move(end) {
    settings.follow = false;
    settings.end = end;
    update();
  }
  const redraw = (name) => (value) => {
    settings[name] = value;
    picker.draw();
  };
  const legend = h("div", { class: "legend" }, KINDS.map((name) => h("span", {}, swatch(name), named("kind", name))),
    h("span", {}, swatch("budget"), t("steps.budget")), h("span", {}, swatch("live"), t("steps.kv_live")), h("span", {}, swatch("cached"), t("steps.kv_cached")),
    h("span", {}, swatch("queue"), t("steps.queue")));
  root.append(h("h1", { class: "hidden" }, t("tab.steps")),
    h("div", { class: "toolbar" }, legend, h("span", { class: "grow" }),
      segmented(t("steps.scale"), [["tallest", t("steps.tallest")], ["budget", t("steps.to_budget")]], settings.scale, redraw("scale")),
      segmented(t("steps.width"), [[4, "4 px"], [8, "8 px"], [16, "16 px"]], settings.pitch, redraw("pitch")), follow),
    h("div", { class: "canvas wide" }, picker.canvas), slider, detail);
  picker.attach();
  root.addEventListener("wheel", wheel, { passive: true });
  function wheel(event) {
    if (!event.deltaX || event.target !== picker.canvas) return;
    move(Math.max(visible(picker.canvas.clientWidth), Math.min(state.steps.length, endOf() + Math.round(event.deltaX / settings.pitch))));
  }

  function update() {
    setAttribute(follow, "aria-pressed", String(settings.follow));
    setAttribute(slider, "max", Math.max(1, state.steps.length));
    slider.value = endOf();
    picker.draw();
    drawDetail(detail, stepNumbered(selected) ?? state.steps.at(-1));
  }
  update();
  return {
    update,
    destroy() {
      root.removeEventListener("wheel", wheel);
      picker.detach();
    },
  };
}

/** Selecting stops following, so that the step stays in sight; from a link it is also brought there. */
function select(number, centre) {
  const end = endOf();
  selected = number;
  settings.follow = false;
  settings.end = end;
  if (centre) settings.end = Math.min(state.steps.length, state.steps.indexOf(stepNumbered(number)) + 40);
}

const endOf = () => (settings.follow ? state.steps.length : Math.min(settings.end || state.steps.length, state.steps.length));

function startAt(width) {
  const room = visible(width);
  const at = selected === null || settings.follow ? -1 : state.steps.indexOf(stepNumbered(selected));
  const start = Math.max(0, endOf() - room);
  if (at >= 0 && at < start) {
    settings.end = Math.min(state.steps.length, at + room);
    return Math.max(0, settings.end - room);
  }
  if (at >= start + room) {
    settings.end = at + 1;
    return Math.max(0, settings.end - room);
  }
  return start;
}

function tokensByKind(step) {
  const sums = { prefill: 0, decode: 0, recompute: 0 };
  for (const each of step.requests) sums[each.kind] += each.tokens;
  return sums;
}

function describe(step) {
  const sums = tokensByKind(step);
  const kinds = KINDS.filter((kind) => sums[kind]).map((kind) => `${named("kind", kind)} ${sums[kind]}`);
  const members = step.requests.slice(0, 8).map((each) => `${shortId(each.id)}  ${named("kind", each.kind)} ${each.tokens}`);
  if (step.requests.length > 8) members.push(t("steps.more", { count: step.requests.length - 8 }));
  return [t("steps.head", { step: step.step, time: ms(step.duration_ms) }),
    `${t("steps.tokens", { tokens: step.tokens, budget: step.budget })}: ${kinds.join(", ")}`, ...members];
}

function paint(context, width, hovered) {
  const start = startAt(width);
  const shown = state.steps.slice(start, start + visible(width));
  const tallest = Math.max(1, ...shown.map((step) => step.tokens));
  const budget = Math.max(0, ...shown.map((step) => step.budget));
  const top = settings.scale === "budget" ? Math.max(budget, tallest) * 1.04 : tallest * 1.08;
  const slowest = Math.max(0.001, ...shown.map((step) => step.duration_ms)) * 1.08;
  const longest = Math.max(1, ...shown.map((step) => step.queue));
  const wide = settings.pitch - (settings.pitch > 4 ? 1.5 : 0.5);
  shown.forEach((step, index) => {
    const x = index * settings.pitch;
    if (start + index === hovered || step.step === selected) {
      context.fillStyle = colour(step.step === selected ? "select" : "hover");
      context.fillRect(x - 0.5, 0, settings.pitch, HEIGHT);
    }
    paintTokens(context, step, x, wide, top);
    context.fillStyle = colour("muted");
    const tall = (LANES.time[1] * step.duration_ms) / slowest;
    context.fillRect(x, LANES.time[0] + LANES.time[1] - tall, wide, tall);
    paintMemory(context, step, x, wide, longest);
    if (step.preempted?.length || step.evicted_blocks) {
      context.fillStyle = colour(step.preempted?.length ? "c-preempted" : "c-cached");
      context.fillRect(x, LANES.kv[0] - 5, wide, 3);
    }
  });
  paintLines(context, width, { tallest, budget, top, slowest });
}

function paintTokens(context, step, x, wide, top) {
  const [, height] = LANES.tokens;
  const sums = tokensByKind(step);
  let y = LANES.tokens[0] + height;
  for (const kind of KINDS) {
    if (!sums[kind]) continue;
    const tall = Math.max(2, (height * sums[kind]) / top);
    context.fillStyle = colour(`c-${kind}`);
    context.fillRect(x, y - tall, wide, tall);
    y -= tall;
  }
  const line = LANES.tokens[0] + height * (1 - step.budget / top); // a step with a long prompt in progress may spend less
  if (line < LANES.tokens[0]) return;
  context.fillStyle = colour("c-budget");
  context.fillRect(x, Math.round(line), settings.pitch, 1);
}

function paintMemory(context, step, x, wide, longest) {
  const [top, height] = LANES.kv;
  const total = step.kv.live + step.kv.cached + step.kv.free || 1;
  const live = (height * step.kv.live) / total;
  const cached = (height * step.kv.cached) / total;
  context.fillStyle = colour("c-live");
  context.fillRect(x, top + height - live, wide, live);
  context.fillStyle = colour("c-cached");
  context.fillRect(x, top + height - live - cached, wide, cached);
  if (step.queue) {
    context.fillStyle = colour("c-queue");
    context.fillRect(x, top + height - Math.max(2, (height * step.queue) / longest), wide, 2);
  }
}

/** The base line of each lane, its name and its scale. */
function paintLines(context, width, { tallest, budget, top, slowest }) {
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const lanes = [["tokens", t("steps.lane_tokens", { count: count(tallest) })], ["time", t("steps.lane_time", { time: ms(slowest / 1.08) })],
    ["kv", t("steps.lane_kv")]];
  for (const [name, text] of lanes) {
    const [y, height] = LANES[name];
    context.fillStyle = colour("rule");
    context.fillRect(0, y + height, width, 1);
    label(context, text, 4, y + 11);
  }
  if (!budget) return;
  const y = LANES.tokens[0] + LANES.tokens[1] * (1 - budget / top);
  context.textAlign = "right";
  label(context, `${y >= 0 ? "" : "\u2191 "}${t("steps.budget")} ${count(budget)}`, width - 4, Math.max(11, y + 13));
  context.textAlign = "left";
}

/** Text that stays legible over columns. */
function label(context, text, x, y) {
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = colour("panel");
  context.strokeText(text, x, y);
  context.fillStyle = colour("muted");
  context.fillText(text, x, y);
}

function drawDetail(place, step) {
  if (!step) return place.replaceChildren(h("p", { class: "empty" }, t("steps.none")));
  if (place.dataset.step === String(step.step)) return null;
  if (place.contains(document.activeElement) && selected === null) return null;
  place.dataset.step = step.step;
  const parts = Object.entries(step.parts ?? {});
  const timing = h("table", {}, h("tbody", {}, parts.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, named("part", name)),
    h("td", { class: "number" }, ms(value)), h("td", { class: "number" }, percent(value, step.duration_ms))))));
  const idLink = (id) => h("a", { class: "id", href: `#/request/${encodeURIComponent(id)}`, title: id }, shortId(id));
  const members = h("table", { class: "members" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("column.id")), h("th", { scope: "col" }, t("column.kind")),
    h("th", { scope: "col", class: "number" }, t("column.from")), h("th", { scope: "col", class: "number" }, t("column.tokens")))),
  h("tbody", {}, step.requests.map((each) => h("tr", {}, h("td", {}, idLink(each.id), each.choice ? ` ${t("request.choice")} ${each.choice}` : ""), h("td", {}, swatch(each.kind), named("kind", each.kind)),
    h("td", { class: "number" }, count(each.from)), h("td", { class: "number" }, count(each.tokens))))));
  const notes = [["admitted", step.admitted], ["preempted", step.preempted]].filter(([, ids]) => ids?.length)
    .map(([name, ids]) => h("p", {}, t(`steps.${name}`), " ", ids.map((id) => [idLink(id), " "])));
  return place.replaceChildren(
    panel(t("steps.head", { step: step.step, time: ms(step.duration_ms) }),
      h("p", { class: "quiet" }, t("steps.tokens", { tokens: count(step.tokens), budget: count(step.budget) }), " \u00b7 ",
        t("steps.state", { running: count(step.running), queue: count(step.queue) })), timing,
      h("p", { class: "quiet" }, t("steps.kv", { live: count(step.kv.live), cached: count(step.kv.cached), free: count(step.kv.free), evicted: count(step.evicted_blocks) })),
      notes),
    panel(t("steps.members", { count: step.requests.length }), h("div", { class: "scroll short", tabindex: 0, role: "region", "aria-label": t("steps.members", { count: step.requests.length }) }, members)));
}
