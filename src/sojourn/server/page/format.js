// Numbers, times and sizes as text. No state but the language that digits are grouped for.

let numbers = new Intl.NumberFormat("en");

export function setNumberLanguage(language) {
  numbers = new Intl.NumberFormat(language);
}

export const NONE = "\u2013";

/** Milliseconds with three significant digits and the unit that reads best. */
export function ms(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  if (size < 10) return `${value.toFixed(2)} ms`;
  if (size < 100) return `${value.toFixed(1)} ms`;
  if (size < 1000) return `${value.toFixed(0)} ms`;
  if (size < 10_000) return `${(value / 1000).toFixed(2)} s`;
  if (size < 120_000) return `${(value / 1000).toFixed(1)} s`;
  return span(value);
}

/** A time on an axis: no digits that say nothing. */
export function tick(value) {
  const short = (number) => Number(number.toPrecision(3));
  if (value < 1000) return `${short(value)} ms`;
  return value < 60_000 ? `${short(value / 1000)} s` : `${short(value / 60_000)} min`;
}

/** A long time: 2 m 05 s, 3 h 12 m. */
export function span(value) {
  const seconds = Math.floor(value / 1000);
  const pair = (big, unit, small, smaller) => `${big} ${unit} ${String(small).padStart(2, "0")} ${smaller}`;
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return pair(Math.floor(seconds / 60), "m", seconds % 60, "s");
  return pair(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "m");
}

export const count = (value) => (value === null || value === undefined ? NONE : numbers.format(value));

export const fixed = (value, digits) => (value === null || value === undefined ? NONE : value.toFixed(digits));

export function percent(part, whole) {
  if (!whole) return NONE;
  const value = (100 * part) / whole;
  if (value > 0 && value < 0.1) return "<0.1%";
  return `${value.toFixed(1)}%`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

/** A parameter count: 135 M, 1.5 B. */
export function parameters(value) {
  if (!value) return NONE;
  return value >= 1e9 ? `${(value / 1e9).toFixed(1)} B` : `${Math.round(value / 1e6)} M`;
}

/** Wall-clock time of Unix seconds, to the millisecond. */
export function clock(unixSeconds) {
  if (!unixSeconds) return NONE;
  const date = new Date(unixSeconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  return `${day} ${time}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** An id short enough for a column: its prefix and its first and last characters. */
export function shortId(id) {
  if (id === null) return NONE;
  if (id.length <= 20) return id;
  const dash = id.lastIndexOf("-");
  const [prefix, tail] = dash > 0 && dash < 12 ? [id.slice(0, dash + 1), id.slice(dash + 1)] : ["", id];
  return tail.length <= 12 ? id.slice(0, 20) : `${prefix}${tail.slice(0, 6)}\u2026${tail.slice(-4)}`;
}

/** The value below which `share` of the sorted values lie (nearest rank). */
export function percentile(sorted, share) {
  if (!sorted.length) return null;
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))];
}

/** Round steps for an axis: at most `most` ticks over a length. */
export function tickStep(length, most) {
  const raw = length / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
}
