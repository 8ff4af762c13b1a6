// Inter-token times as the steps give them: the time between the ends of two steps that gave a request a token. Lists of
// requests carry no arrays, so the page derives these from the steps it holds. Owner of the samples.

const LIMIT = 20_000;

export class TokenTimes {
  constructor() {
    this.clear();
  }

  clear() {
    this.samples = []; // {id, ms}, oldest first
    this.open = new Map(); // id -> choice -> {token, chunk}: ends of the steps of its last token and its last prompt chunk
  }

  add(step) {
    const end = step.start_ms + step.duration_ms;
    for (const { id, kind, choice = 0 } of step.requests) {
      if (id === null) continue; // so old that the server has forgotten its id
      if (!this.open.has(id)) this.open.set(id, new Map());
      const choices = this.open.get(id);
      if (!choices.has(choice)) choices.set(choice, {});
      const last = choices.get(choice);
      if (kind !== "decode") {
        last.chunk = end;
        continue;
      }
      // Only a decode in a later step tells that a chunk was the last one, and so gave a token.
      if (last.chunk !== undefined && last.chunk !== end) this.#token(id, last, last.chunk);
      this.#token(id, last, end);
      last.chunk = undefined;
    }
    if (this.samples.length > LIMIT) this.samples.splice(0, this.samples.length - LIMIT);
  }

  #token(id, last, end) {
    if (last.token !== undefined) this.samples.push({ id, ms: end - last.token });
    last.token = end;
  }

  forget(id) {
    this.open.delete(id);
  }
}
