// The strip of inter-token times: one cell for each token after the first, as high as it took and coloured by its cause.

import { h, panel } from "./dom.js";
import { count, ms, percentile, shortId } from "./format.js";
import { named, t } from "./i18n.js";
import { CanvasPicker } from "./picker.js";
import { swatch } from "./request_account.js";
import { CAUSES, causeColour, colour, samplingSteps } from "./stations.js";

const HEIGHT = 96;
const WIDEST = 14;
const CUT = 6; // bars end at so many times the median, so that one long gap does not flatten all others

export class TokenStrip {
  constructor(record) {
    this.record = record;
    this.selected = -1;
    this.picker = new CanvasPicker({
      label: t("itl.label"), height: HEIGHT,
      count: () => this.record.itl_ms?.length ?? 0,
      selected: () => this.selected,
      select: (index) => {
        this.selected = index;
        this.detail();
      },
      open: (index) => { location.hash = `#/steps/${this.cause(index).step}`; },
      indexAt: (x, y, width) => Math.floor(x / this.pitch(width)),
      describe: (index) => this.describe(index),
      draw: (context, width, height, hovered) => this.paint(context, width, height, hovered),
    });
    this.legend = h("div", { class: "legend" });
    this.said = h("div", { class: "detail", "aria-live": "polite" });
    this.element = panel(t("itl.title"), this.legend, h("div", { class: "canvas" }, this.picker.canvas), this.said);
    this.update(record);
  }

  attach() {
    this.picker.attach();
  }

  destroy() {
    this.picker.detach();
  }

  draw() {
    this.picker.draw();
  }

  pitch(width) {
    return Math.min(WIDEST, width / Math.max(1, this.record.itl_ms?.length ?? 0));
  }

  /** Cause, step and company of a token. The record lists what was not a plain decode. */
  cause(index) {
    return this.causes.get(index) ?? { cause: "decode", step: this.sampling[index + 1]?.step };
  }

  update(record) {
    this.record = record;
    this.causes = new Map((record.itl_causes ?? []).map((each) => [each.index, each]));
    this.sampling = samplingSteps(record);
    const times = record.itl_ms ?? [];
    const sorted = [...times].sort((a, b) => a - b);
    this.top = Math.max(0.001, Math.min(sorted.at(-1) ?? 0, CUT * percentile(sorted, 0.5)));
    const tally = new Map();
    times.forEach((_, index) => tally.set(this.cause(index).cause, (tally.get(this.cause(index).cause) ?? 0) + 1));
    const causes = [...CAUSES, ...[...tally.keys()].filter((name) => !CAUSES.includes(name))];
    const shares = [[0.5, "p50"], [0.9, "p90"], [0.99, "p99"], [1, "max"]].map(([share, name]) =>
      h("span", { class: "figure" }, `${name} ${ms(percentile(sorted, share))}`));
    this.legend.replaceChildren(...causes.filter((name) => tally.has(name)).map((name) =>
      h("span", {}, swatch(causeColour(name)), `${named("cause", name)} ${count(tally.get(name))}`)), ...(times.length ? shares : []),
      this.top < sorted.at(-1) ? t("itl.cut", { time: ms(this.top) }) : "");
    this.picker.canvas.parentElement.hidden = times.length === 0;
    this.detail();
    this.picker.draw();
  }

  describe(index) {
    const { cause, step, with: others } = this.cause(index);
    const lines = [t("itl.token", { index: index + 2, time: ms(this.record.itl_ms[index]) }), named("cause", cause)];
    if (step !== undefined) lines.push(t("itl.step", { step }));
    if (others?.length) lines.push(t("itl.with", { count: others.length }));
    return lines;
  }

  detail() {
    const times = this.record.itl_ms ?? [];
    if (!times.length) return this.said.replaceChildren(t("itl.none"));
    if (this.selected < 0 || this.selected >= times.length) return this.said.replaceChildren(h("span", { class: "hint" }, t("itl.hint")));
    const { cause, step, with: others = [] } = this.cause(this.selected);
    const key = `${this.selected} ${times[this.selected]} ${step} ${others.join()}`;
    if (this.said.dataset.key === key && this.said.firstChild) return null;
    this.said.dataset.key = key;
    const stepLink = step === undefined ? null : h("a", { href: `#/steps/${step}` }, t("itl.step", { step }));
    const links = others.map((id) => h("a", { href: `#/request/${encodeURIComponent(id)}`, class: "id", title: id }, shortId(id)));
    return this.said.replaceChildren(
      h("strong", {}, t("itl.token", { index: this.selected + 2, time: ms(times[this.selected]) })),
      h("span", {}, swatch(causeColour(cause)), named("cause", cause)), stepLink ?? "",
      links.length ? h("span", { class: "sharing" }, t("itl.sharing"), " ", links) : "");
  }

  paint(context, width, height, hovered) {
    const times = this.record.itl_ms ?? [];
    const pitch = this.pitch(width);
    const gap = pitch > 4 ? 1 : 0;
    times.forEach((time, index) => {
      const isCut = time > this.top;
      const tall = Math.max(2, ((height - 4) * Math.min(time, this.top)) / this.top);
      context.fillStyle = colour(`c-${causeColour(this.cause(index).cause)}`);
      context.globalAlpha = hovered === index ? 0.7 : 1;
      context.fillRect(index * pitch, height - tall, Math.max(0.5, pitch - gap), tall);
      if (isCut) context.clearRect(index * pitch, 10, pitch, 3);
    });
    context.globalAlpha = 1;
    if (this.selected >= 0 && this.selected < times.length) {
      context.strokeStyle = colour("ink");
      context.lineWidth = 1.5;
      context.strokeRect(this.selected * pitch - 0.5, 1, Math.max(3, pitch - gap + 1), height - 2);
    }
  }
}
