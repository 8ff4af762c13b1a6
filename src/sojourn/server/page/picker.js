// A canvas whose marks can be pointed at and walked through with the keyboard. To assistive technology it is a slider that
// says in words what is under it. Holds no data: the view draws, counts and describes.

import { h, hideTip, setAttribute, showTip } from "./dom.js";

export class CanvasPicker {
  /**
   * options: label; height (a number, or a function of the width); draw(context, width, height, hovered);
   * count(); selected() -> index or -1; select(index); indexAt(x, y, width) -> index; describe(index) -> lines;
   * columns() for a grid (1 row otherwise); open(index) on Enter or a double click.
   */
  constructor(options) {
    this.options = options;
    this.width = 0;
    this.height = 0;
    this.hovered = -1;
    this.canvas = h("canvas", {
      tabindex: 0, role: "slider", "aria-label": options.label, class: "picker",
      onpointermove: (event) => this.point(event),
      onpointerleave: () => this.leave(),
      onclick: (event) => this.choose(this.point(event)),
      ondblclick: (event) => this.open(this.point(event)),
      onkeydown: (event) => this.key(event),
    });
    this.observer = new ResizeObserver(() => this.draw());
  }

  /** Once the canvas has its place: follows the width of what it stands in. */
  attach() {
    this.observer.observe(this.canvas.parentElement);
  }

  detach() {
    this.observer.disconnect();
    hideTip();
  }

  resize() {
    const place = this.canvas.parentElement;
    this.width = place ? Math.floor(place.clientWidth) : 0;
    const { height } = this.options;
    this.height = typeof height === "function" ? height(this.width) : height;
    const ratio = devicePixelRatio || 1;
    const [columns, rows] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width === columns && this.canvas.height === rows) return;
    this.canvas.width = columns;
    this.canvas.height = rows;
    this.canvas.style.height = `${this.height}px`;
  }

  draw() {
    this.resize();
    if (!this.width) return;
    const context = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.options.draw(context, this.width, this.height, this.hovered);
    const last = this.options.count() - 1;
    const at = this.options.selected();
    setAttribute(this.canvas, "aria-valuemin", 0);
    setAttribute(this.canvas, "aria-valuemax", Math.max(0, last));
    setAttribute(this.canvas, "aria-valuenow", Math.max(0, at));
    setAttribute(this.canvas, "aria-valuetext", at >= 0 && at <= last ? this.options.describe(at).join(", ") : this.options.label);
  }

  /** What is under the pointer: its index, -1 for nothing. Shows it. */
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const index = this.options.indexAt(event.clientX - box.left, event.clientY - box.top, this.width);
    const found = index >= 0 && index < this.options.count() ? index : -1;
    if (found < 0) hideTip();
    else showTip(this.options.describe(found), event.clientX, event.clientY);
    if (found !== this.hovered) {
      this.hovered = found;
      this.draw();
    }
    return found;
  }

  leave() {
    this.hovered = -1;
    hideTip();
    this.draw();
  }

  choose(index) {
    if (index < 0 || index >= this.options.count()) return;
    this.options.select(index);
    this.draw();
  }

  open(index) {
    if (index >= 0) this.options.open?.(index);
  }

  /** With nothing selected, any arrow begins at the last mark, which is the newest. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.options.count() - 1;
    const at = this.options.selected();
    const row = this.options.columns?.() ?? 1;
    const leap = this.options.columns ? 5 * row : 20;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row };
    if (event.key === "Enter") this.open(at);
    else if (event.key in moves) this.choose(at < 0 ? last : at + moves[event.key]);
    else if (event.key === "Home") this.choose(0);
    else if (event.key === "End") this.choose(last);
    else if (event.key === "PageUp") this.choose(Math.max(0, at - leap));
    else if (event.key === "PageDown") this.choose(Math.min(last, at + leap));
    else return;
    event.preventDefault();
  }
}
