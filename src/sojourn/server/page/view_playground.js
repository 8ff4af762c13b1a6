// View 7: a chat with the served model, in which every token says when it came, from which step, and how likely it was.
// Owns the conversation.

import { getJson, request } from "./api.js";
import { h, hideTip, roving, segmented, setAttribute, setText, showTip } from "./dom.js";
import { eventsOf } from "./events.js";
import { count, fixed, ms } from "./format.js";
import { t } from "./i18n.js";
import { samplingSteps } from "./stations.js";
import { state } from "./store.js";

const TOP_LOGPROBS = 3;
const conversation = []; // {role, text, tokens?, id?, error?}
const settings = { shade: "none", maxTokens: 200, temperature: 0.7, draft: "" };
let running = null; // AbortController of the reply in progress
let redraw = () => {};

export function mount(root) {
  const log = h("div", { class: "chat", role: "log", "aria-label": t("play.log") });
  const about = h("div", { class: "detail token-detail", "aria-live": "polite" });
  const input = h("textarea", {
    rows: 3, value: settings.draft, placeholder: t("play.placeholder"), "aria-label": t("play.placeholder"),
    oninput: () => { settings.draft = input.value; },
    onkeydown: (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    },
  });
  const send = h("button", { type: "button", class: "primary send", onclick: () => (running ? running.abort() : submit()) });
  const clear = h("button", { type: "button", onclick: () => {
    running?.abort();
    conversation.length = 0;
    update();
  } }, t("play.clear"));
  const number = (name, attributes) => h("label", {}, t(`play.${name}`), h("input", {
    type: "number", value: settings[name], ...attributes, onchange: (event) => { settings[name] = Number(event.target.value); },
  }));
  const shade = (value) => {
    settings.shade = value;
    update();
  };
  const shades = [["none", t("play.shade_none")], ["likely", t("play.shade_likely")], ["time", t("play.shade_time")]];
  root.append(h("h1", { class: "hidden" }, t("tab.playground")),
    h("div", { class: "toolbar" }, h("span", {}, t("play.model", { model: state.system.model })), number("maxTokens", { min: 1, max: 4096 }),
      number("temperature", { min: 0, max: 2, step: 0.1 }), h("span", { class: "grow" }),
      segmented(t("play.shade"), shades, settings.shade, shade), clear),
    log, about, h("div", { class: "composer" }, input, send));
  const settle = roving(log, "span.token");
  const tell = (event, x, y) => {
    const token = event.target.closest?.("span.token")?.token;
    if (!token) return hideTip();
    setText(about, describe(token).join(" \u00b7 "));
    return showTip(describe(token), x, y);
  };
  log.addEventListener("pointermove", (event) => tell(event, event.clientX, event.clientY));
  log.addEventListener("pointerleave", hideTip);
  log.addEventListener("focusin", (event) => {
    const box = event.target.getBoundingClientRect();
    tell(event, box.left, box.bottom - 8);
  });

  async function submit() {
    const text = input.value.trim();
    if (!text || running) return;
    input.value = "";
    settings.draft = "";
    conversation.push({ role: "user", text });
    await answer();
    if (input.isConnected) input.focus();
  }

  function update() {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    drawLog(log);
    setText(send, t(running ? "play.stop" : "play.send"));
    settle();
    if (atEnd) log.scrollTop = log.scrollHeight;
    if (!about.textContent) setText(about, t("play.hint"));
  }
  redraw = update;
  update();
  input.focus();
  return {
    update() {},
    destroy() {
      redraw = () => {};
      hideTip();
    },
  };
}

/** Streams one reply into the conversation, then reads its record for the exact times and steps. */
async function answer() {
  const messages = conversation.filter((each) => !each.error).map(({ role, text }) => ({ role, content: text }));
  const reply = { role: "assistant", text: "", tokens: [], id: null, started: performance.now() };
  conversation.push(reply);
  running = new AbortController();
  redraw();
  try {
    await stream(messages, reply);
  } catch (error) {
    if (error.name !== "AbortError") reply.error = error.message;
  }
  running = null;
  redraw();
  if (reply.id) await addRecord(reply);
}

async function stream(messages, reply) {
  const body = {
    model: state.system.model, messages, stream: true, logprobs: true, top_logprobs: TOP_LOGPROBS, timings: true,
    max_tokens: settings.maxTokens, temperature: settings.temperature,
  };
  const answered = await request("/v1/chat/completions", {
    method: "POST", signal: running.signal, headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  });
  if (!answered.ok) throw new Error((await answered.json()).error?.message ?? `${answered.status}`);
  for await (const [, data] of eventsOf(answered.body)) {
    if (data === "[DONE]") continue;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    reply.id = chunk.id;
    reply.timings = chunk.timings ?? reply.timings;
    const choice = chunk.choices?.[0];
    reply.text += choice?.delta?.content ?? "";
    for (const each of choice?.logprobs?.content ?? []) {
      reply.tokens.push({ text: each.token, logprob: each.logprob, top: each.top_logprobs ?? [], index: reply.tokens.length, arrived: performance.now() - reply.started });
    }
    redraw();
  }
}

/** Token i came from the i-th of the record's steps that sampled; its time is that step's end. */
async function addRecord(reply) {
  try {
    const record = await getJson(`/v1/requests/${encodeURIComponent(reply.id)}`);
    const sampling = samplingSteps(record);
    reply.record = record;
    reply.tokens.forEach((token, index) => {
      token.at = record.token_times_ms?.[index];
      token.step = sampling[index]?.step;
      token.took = index === 0 ? record.ttft?.total_ms : record.itl_ms?.[index - 1];
    });
    redraw();
  } catch (error) {
    reply.error = error.message;
    redraw();
  }
}

function describe(token) {
  const lines = [`${t("play.token", { index: token.index + 1 })}  ${visible(token.text)}`];
  lines.push(token.at === undefined ? t("play.arrived", { time: ms(token.arrived) }) : t("play.at", { time: ms(token.at), took: ms(token.took) }));
  if (token.step !== undefined) lines.push(t("play.step", { step: token.step }));
  lines.push(t("play.logprob", { logprob: fixed(token.logprob, 3), share: `${(100 * Math.exp(token.logprob)).toFixed(1)}%` }));
  for (const each of token.top) {
    if (each.token !== token.text) lines.push(`${visible(each.token)}  ${(100 * Math.exp(each.logprob)).toFixed(1)}%`);
  }
  return lines;
}

const visible = (text) => JSON.stringify(text);

function drawLog(log) {
  conversation.forEach((message, index) => {
    let place = log.children[index];
    if (!place || place.message !== message) {
      place = h("article", { class: `message ${message.role}` }, h("header", {}, t(`play.${message.role}`)), h("div", { class: "text" }), h("footer", {}));
      place.message = message;
      if (log.children[index]) log.children[index].replaceWith(place);
      else log.append(place);
    }
    fillMessage(place, message);
  });
  while (log.children.length > conversation.length) log.lastElementChild.remove();
}

function fillMessage(place, message) {
  const [, text, footer] = place.children;
  if (message.role === "user") return setText(text, message.text);
  message.tokens.forEach((token, index) => {
    const span = text.children[index] ?? text.appendChild(h("span", { class: "token", tabindex: -1, role: "button" }, token.text));
    span.token = token;
    setAttribute(span, "data-shade", shadeOf(message, token));
    span.classList.toggle("control", /^<\|.*\|>$/.test(token.text)); // ends the reply, and is no part of its text
  });
  if (!message.tokens.length) setText(text, message.text || (running ? "\u2026" : ""));
  else if (text.firstChild.nodeType === Node.TEXT_NODE) text.firstChild.remove();
  return fillFooter(footer, message);
}

function fillFooter(footer, message) {
  const { record } = message;
  const key = [message.error, record?.request_id, message.tokens.length].join();
  if (footer.dataset.key === key) return;
  footer.dataset.key = key;
  if (message.error) return footer.replaceChildren(h("span", { class: "problem", role: "alert" }, message.error));
  if (!record) return footer.replaceChildren(t("play.tokens", { count: count(message.tokens.length) }));
  const figures = [t("play.tokens", { count: count(message.tokens.length) }), `${t("column.ttft")} ${ms(record.ttft?.total_ms)}`,
    `${t("column.tpot")} ${ms(record.tpot_ms)}`, `${t("column.e2e")} ${ms(record.e2e_ms)}`];
  return footer.replaceChildren(figures.join(" \u00b7 "), " \u00b7 ",
    h("a", { href: `#/request/${encodeURIComponent(record.request_id)}` }, t("play.open")), " \u00b7 ",
    h("a", { href: `#/request/${encodeURIComponent(record.request_id)}/steps` }, t("request.step_through")));
}

/** How strongly a token is marked: 0 to 4, by how unlikely it was or how long it took beside the slowest one. */
function shadeOf(message, token) {
  if (settings.shade === "likely") return Math.min(4, Math.floor((1 - Math.exp(token.logprob)) * 5));
  if (settings.shade !== "time" || token.took === undefined || token.index === 0) return null;
  const slowest = Math.max(...message.tokens.slice(1).map((each) => each.took ?? 0));
  return Math.min(4, Math.floor((token.took / slowest) * 5));
}
