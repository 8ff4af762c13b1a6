// The feed: reads /v1/events with fetch, so that the key travels in a header, and keeps trying. Owner of the connection.

import { apiKey, request } from "./api.js";

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 10_000;
const SILENCE_MS = 40_000; // the server says something at least every 15 s

/** Splits a stream of server-sent events; gives [event, data] pairs. Comment lines carry nothing. */
export async function* eventsOf(body, heard = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    rest += value.replaceAll("\r\n", "\n");
    const frames = rest.split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      let event = "message";
      const data = [];
      for (const line of frame.split("\n")) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length) yield [event, data.join("\n")];
    }
  }
}

export class Feed {
  /** `handlers.snapshot(data)`, `handlers.delta(data)` and `handlers.phase({phase, retryAt})` are called as things happen. */
  constructor(handlers) {
    this.handlers = handlers;
    this.failures = 0;
    this.wake = null;
    this.reason = undefined; // what the server said when it refused
  }

  async run() {
    for (;;) {
      const outcome = await this.#listen();
      if (outcome === "key") {
        this.handlers.phase({ phase: "key", refused: apiKey() !== null });
        await new Promise((resolve) => { this.wake = resolve; });
      } else {
        const delay = Math.min(FIRST_DELAY_MS * 2 ** this.failures, LONGEST_DELAY_MS) * (0.8 + 0.4 * Math.random());
        this.failures += 1;
        this.handlers.phase({ phase: "lost", retryAt: Date.now() + delay, reason: this.reason });
        await new Promise((resolve) => {
          this.wake = resolve;
          setTimeout(resolve, delay);
        });
      }
      this.handlers.phase({ phase: "connecting" });
    }
  }

  /** Ends a wait between tries: the key was entered, or somebody asked to try now. */
  retry() {
    this.wake?.();
  }

  async #listen() {
    const controller = new AbortController();
    let watchdog;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => controller.abort(), SILENCE_MS);
    };
    heard();
    this.reason = undefined;
    try {
      const reply = await request("/v1/events", { signal: controller.signal });
      if (reply.status === 401) return "key";
      if (!reply.ok) {
        this.reason = (await reply.json()).error?.message;
        return "lost";
      }
      for await (const [event, data] of eventsOf(reply.body, heard)) {
        this.#handle(event, JSON.parse(data));
      }
    } catch (error) {
      // A dropped connection and a refused one both surface as TypeError, the watchdog as AbortError. Anything else is ours.
      if (error.name !== "TypeError" && error.name !== "AbortError") console.error(error);
    } finally {
      clearTimeout(watchdog);
    }
    return "lost";
  }

  #handle(event, data) {
    if (event === "snapshot") {
      this.failures = 0;
      this.handlers.snapshot(data);
      this.handlers.phase({ phase: "live" });
    } else if (event === "delta") {
      this.handlers.delta(data);
    }
  }
}
