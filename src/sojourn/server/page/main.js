// The frame of the page: tabs, language, theme, connection, status bar. Owner of which view is shown.

import { setApiKey } from "./api.js";
import { h, hideTip, setAttribute, setText } from "./dom.js";
import { Feed } from "./events.js";
import { count, fixed, percent, span } from "./format.js";
import { language, setLanguage, t } from "./i18n.js";
import { forgetColours } from "./stations.js";
import * as store from "./store.js";
import * as histograms from "./view_histograms.js";
import * as kv from "./view_kv.js";
import * as playground from "./view_playground.js";
import * as queue from "./view_queue.js";
import * as one from "./view_request.js";
import * as requests from "./view_requests.js";
import * as steps from "./view_steps.js";
import * as system from "./view_system.js";

const VIEWS = { requests, request: one, steps, kv, queue, histograms, playground, system };
const REDRAW_MS = 100;
const TICK_MS = 250; // bars of live requests grow and waits count up between two deltas
const STORED_THEME = "sojourn-theme";

const top = document.getElementById("top");
const banner = document.getElementById("banner");
const root = document.getElementById("view");
const status = document.getElementById("status");

let shown = null; // {name, view}
let pending = null;
let lastDrawn = 0;
let changes = new Set();

const feed = new Feed({ snapshot: store.applySnapshot, delta: store.applyDelta, phase: store.setConnection });

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  return { name: name in VIEWS ? name : "requests", parameters: rest };
}

/** A part of the address; one that is no valid encoding stands for itself. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function show() {
  hideTip();
  shown?.view.destroy?.();
  shown = null;
  root.replaceChildren();
  root.scrollTop = 0;
  const { phase } = store.state.connection;
  const { name, parameters } = route();
  for (const link of top.querySelectorAll("nav a")) setAttribute(link, "aria-current", link.dataset.view === name && "page");
  if (phase === "key") return root.replaceChildren(keyForm());
  if (!store.state.system) return root.replaceChildren(h("p", { class: "empty" }, t("connection.connecting")));
  document.title = `${t(`tab.${name}`)} \u00b7 Sojourn`;
  root.className = `view-${name}`;
  shown = { name, view: VIEWS[name].mount(root, parameters) };
}

function keyForm() {
  const input = h("input", { id: "key", type: "password", autocomplete: "off", required: true });
  const enter = (event) => {
    event.preventDefault();
    setApiKey(input.value.trim());
    feed.retry();
  };
  return h("form", { class: "key-form", onsubmit: enter },
    h("h1", {}, t("key.title")),
    h("p", {}, t(store.state.connection.refused ? "key.refused" : "key.why")),
    h("label", { for: "key" }, t("key.label")),
    h("div", { class: "row" }, input, h("button", { type: "submit", class: "primary" }, t("key.enter"))));
}

function drawTop() {
  const links = Object.keys(VIEWS).map((name) => h("a", { href: `#/${name}`, "data-view": name }, t(`tab.${name}`)));
  const other = language() === "zh" ? "en" : "zh";
  const switchLanguage = () => {
    setLanguage(other);
    redrawAll();
  };
  top.replaceChildren(
    h("strong", { class: "mark" }, "sojourn"),
    h("nav", { "aria-label": t("nav.label") }, links),
    h("div", { class: "tools" },
      h("button", { type: "button", id: "language", lang: other === "zh" ? "zh-CN" : "en", onclick: switchLanguage },
        other === "zh" ? "中文" : "English"),
      h("button", { type: "button", id: "theme", onclick: nextTheme }, t(`theme.${theme()}`))));
}

const theme = () => localStorage.getItem(STORED_THEME) ?? "auto";

function nextTheme() {
  const themes = ["auto", "light", "dark"];
  localStorage.setItem(STORED_THEME, themes[(themes.indexOf(theme()) + 1) % themes.length]);
  applyTheme();
  setText(document.getElementById("theme"), t(`theme.${theme()}`));
}

function applyTheme() {
  setAttribute(document.documentElement, "data-theme", theme() === "auto" ? null : theme());
  forgetColours();
  schedule("theme");
}

function drawBanner() {
  const { phase, retryAt, reason } = store.state.connection;
  banner.hidden = phase !== "lost";
  setAttribute(root, "data-stale", phase === "lost" || (phase === "connecting" && Boolean(store.state.system)));
  if (phase !== "lost") return banner.replaceChildren();
  if (!banner.firstChild) {
    banner.append(h("strong", {}), h("span", { "aria-live": "off" }),
      h("button", { type: "button", onclick: () => feed.retry() }, t("connection.try_now")));
  }
  const seconds = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  setText(banner.children[0], reason ?? t("connection.lost"));
  return setText(banner.children[1], t(store.state.system ? "connection.retry_in" : "connection.first_in", { seconds }));
}

function drawStatus() {
  const { connection, system, stats, kv: blocks, queue: waiting } = store.state;
  const cells = [["phase", t(`connection.${connection.phase}`)]];
  if (system && connection.phase !== "key") {
    cells.push(["model", system.model], ["running", t("status.running", { count: count(stats.running ?? 0) })],
      ["waiting", t("status.waiting", { count: count(waiting.length) })],
      ["rate", t("status.rate", { rate: fixed(store.currentRate(), 0) })],
      ["kv", t("status.kv", { share: percent(blocks.live, blocks.num_blocks) })],
      ["preemptions", t("status.preemptions", { count: count(stats.preemptions ?? 0) })],
      ["uptime", t("status.uptime", { time: span(store.now()) })]);
  }
  if (status.children.length !== cells.length) {
    status.replaceChildren(...cells.map(([name]) => h("span", { class: name })));
  }
  cells.forEach(([, text], index) => setText(status.children[index], text));
  setAttribute(status, "data-phase", connection.phase);
}

/** Draws soon, and at most ten times a second however fast the news comes. */
function schedule(change) {
  changes.add(change);
  pending ??= setTimeout(() => requestAnimationFrame(draw), Math.max(0, REDRAW_MS - (performance.now() - lastDrawn)));
}

function draw() {
  pending = null;
  lastDrawn = performance.now();
  const seen = changes;
  changes = new Set();
  drawBanner();
  drawStatus();
  shown?.view.update?.(seen);
}

function redrawAll() {
  drawTop();
  banner.replaceChildren();
  show();
  schedule("language");
}

let phaseShown = null;
store.subscribe((change) => {
  const { phase } = store.state.connection;
  if ((phase === "key") !== (phaseShown === "key") || (change === "snapshot" && !shown)) {
    phaseShown = phase;
    show();
    document.getElementById("key")?.focus();
  }
  schedule(change);
});

addEventListener("hashchange", () => {
  show();
  if (document.activeElement === document.body) root.focus(); // so that Tab goes on in the view, not at the top
});
addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape") hideTip();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !shown) return;
  const name = Object.keys(VIEWS)[Number(event.key) - 1];
  if (name) location.hash = `#/${name}`;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
setInterval(() => {
  if (!document.hidden) schedule("tick");
}, TICK_MS);

applyTheme();
drawTop();
show();
feed.run();
