// Inter-token times as the steps give them: the time between the ends of two steps that gave a request a token. Lists of
// requests carry no arrays, so the page derives these from the steps it holds. Owner of the samples.

const LIMIT = 20_000;

export class TokenTimes {
  constructor() {
    this.clear();
  }

  clear() {
    this.samples = []; // {id, step, ms}, oldest first
    this.lastToken = new Map(); // id -> end of the step that gave its last token
    this.lastChunk = new Map(); // id -> end of its last prompt chunk, whose successor tells whether it gave a token
  }

  add(step) {
    const end = step.start_ms + step.duration_ms;
    for (const part of step.requests) {
      if (part.kind !== "decode") {
        this.lastChunk.set(part.id, end);
        continue;
      }
      const chunk = this.lastChunk.get(part.id);
      if (chunk !== undefined) {
        this.#token(part.id, chunk, step.step);
        this.lastChunk.delete(part.id);
      }
      this.#token(part.id, end, step.step);
    }
    if (this.samples.length > LIMIT) this.samples.splice(0, this.samples.length - LIMIT);
  }

  #token(id, end, step) {
    const before = this.lastToken.get(id);
    if (before !== undefined) this.samples.push({ id, step, ms: end - before });
    this.lastToken.set(id, end);
  }

  forget(id) {
    this.lastToken.delete(id);
    this.lastChunk.delete(id);
  }
}
