// View 8: what is served, on what, with which settings and where each came from, and how the server started. Holds nothing.

import { facts, h, panel, s } from "./dom.js";
import { bytes, clock, count, fixed, ms, parameters, percent } from "./format.js";
import { named, t } from "./i18n.js";
import { swatch } from "./request_account.js";
import { state } from "./store.js";

export function mount(root) {
  const { system } = state;
  root.append(h("h1", { class: "hidden" }, t("tab.system")),
    h("div", { class: "columns system" },
      h("div", { class: "stack" }, modelPanel(system), machinePanel(system), memoryPanel(system), startupPanel(system)),
      configurationPanel(system)));
  return {
    update(changes) {
      if (!changes.has("snapshot") || system === state.system || root.contains(document.activeElement)) return;
      root.replaceChildren();
      mount(root);
    },
  };
}

function modelPanel(system) {
  const pairs = [["model", system.model], ["architecture", system.architecture], ["quantization", system.quantization],
    ["parameters", parameters(system.num_parameters)], ["context", t("system.tokens", { count: count(system.context.max_model_len) })],
    ["reason", system.context.reason]];
  return panel(t("system.model_title"), facts(pairs.map(([name, value]) => [t(`system.${name}`), value ?? "\u2013"])));
}

function machinePanel(system) {
  const pairs = [["backend", system.backend], ["isa", system.isa], ["threads", count(system.threads)], ["version", system.version],
    ["started", clock(system.started_at)]];
  return panel(t("system.machine_title"), facts(pairs.map(([name, value]) => [t(`system.${name}`), value ?? "\u2013"])));
}

/** Weights and KV are parts of what is reserved; what is resident can be less, because pages are mapped as they are touched. */
function memoryPanel(system) {
  const { weight_bytes: weights, kv_bytes: kv, resident_bytes: resident } = system.memory;
  const total = Math.max(weights + kv, resident ?? 0) || 1;
  const bar = (name, value) => h("tr", {}, h("th", { scope: "row" }, swatch(name), t(`system.${name}`)), h("td", { class: "number" }, bytes(value)),
    h("td", { class: "number" }, percent(value, total)),
    h("td", { class: "share" }, s("svg", { class: "share", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("rect", { width: (100 * (value ?? 0)) / total, height: 1, class: `f-${name}` }))));
  return panel(t("system.memory_title"), h("table", {}, h("tbody", {}, bar("weights", weights), bar("kv_cache", kv), bar("resident", resident))),
    h("p", { class: "quiet" }, t("system.blocks", { blocks: count(system.kv.num_blocks), tokens: count(system.kv.block_size) })));
}

function startupPanel(system) {
  const phases = system.startup ?? [];
  if (!phases.length) return null;
  const total = Math.max(...phases.map((each) => each.start_ms + each.duration_ms), 0.001);
  const rows = phases.map((each) => h("tr", {}, h("th", { scope: "row" }, named("startup", each.name)), h("td", { class: "number" }, ms(each.duration_ms)),
    h("td", { class: "life" }, s("svg", { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("rect", { x: (100 * each.start_ms) / total, width: Math.max(0.3, (100 * each.duration_ms) / total), height: 1, class: "f-prefill" })))));
  return panel(t("system.startup_title", { seconds: fixed(total / 1000, 2) }), h("table", { class: "startup" }, h("tbody", {}, rows)));
}

function configurationPanel(system) {
  const rows = (system.configuration ?? []).map((each) => h("tr", { class: each.source === "default" ? "is-default" : null },
    h("th", { scope: "row" }, `--${each.name.replaceAll("_", "-")}`), h("td", { class: "value" }, textOf(each.value)),
    h("td", {}, h("span", { class: "source", "data-source": each.source }, named("source", each.source)))));
  return panel(t("system.configuration_title"), h("table", { class: "configuration" },
    h("thead", {}, h("tr", {}, ["option", "value", "source"].map((name) => h("th", { scope: "col" }, t(`column.${name}`))))), h("tbody", {}, rows)));
}

function textOf(value) {
  if (value === null || value === undefined) return "\u2013";
  if (Array.isArray(value)) return value.length ? value.join(", ") : "\u2013";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
