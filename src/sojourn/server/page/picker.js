// A canvas whose marks can be pointed at and walked through with the keyboard. To assistive technology it is a slider that
// says in words what is under it. Holds no data: the view draws, counts and describes.

import { h, hideTip, setAttribute, showTip } from "./dom.js";

/**
 * options: label; height (a number, or a function of the width); draw(context, width, height, hovered);
 * count(); selected() -> index or -1; select(index); indexAt(x, y, width) -> index or -1; describe(index) -> lines;
 * columns() for a grid (1 row otherwise); open(index) on Enter or a double click.
 */
export function canvasPicker(options) {
  const canvas = h("canvas", { tabindex: 0, role: "slider", "aria-label": options.label, class: "picker" });
  let width = 0;
  let height = 0;
  let hovered = -1;

  function resize() {
    width = Math.floor(canvas.parentElement?.clientWidth ?? 0);
    height = typeof options.height === "function" ? options.height(width) : options.height;
    const ratio = devicePixelRatio || 1;
    const [pixels, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== pixels || canvas.height !== rows) {
      canvas.width = pixels;
      canvas.height = rows;
      canvas.style.height = `${height}px`;
    }
  }

  function draw() {
    resize();
    if (!width) return;
    const context = canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    options.draw(context, width, height, hovered);
    const last = options.count() - 1;
    const at = options.selected();
    setAttribute(canvas, "aria-valuemin", 0);
    setAttribute(canvas, "aria-valuemax", Math.max(0, last));
    setAttribute(canvas, "aria-valuenow", Math.max(0, at));
    setAttribute(canvas, "aria-valuetext", at >= 0 && at <= last ? options.describe(at).join(", ") : options.label);
  }

  function point(event) {
    const box = canvas.getBoundingClientRect();
    const index = options.indexAt(event.clientX - box.left, event.clientY - box.top, width);
    const next = index >= 0 && index < options.count() ? index : -1;
    if (next < 0) hideTip();
    else showTip(options.describe(next), event.clientX, event.clientY);
    if (next !== hovered) {
      hovered = next;
      draw();
    }
    return next;
  }

  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerleave", () => {
    hovered = -1;
    hideTip();
    draw();
  });
  canvas.addEventListener("click", (event) => {
    const index = point(event);
    if (index >= 0) choose(index);
  });
  canvas.addEventListener("dblclick", (event) => {
    const index = point(event);
    if (index >= 0) options.open?.(index);
  });
  canvas.addEventListener("keydown", (event) => {
    const last = options.count() - 1;
    const at = options.selected();
    const row = options.columns?.() ?? 1;
    const leap = options.columns ? 5 * row : 20;
    const from = at < 0 ? last : at;
    const goals = {
      ArrowLeft: at < 0 ? last : at - 1, ArrowRight: at < 0 ? last : at + 1, ArrowUp: from - row, ArrowDown: from + row,
      Home: 0, End: last, PageUp: Math.max(0, from - leap), PageDown: Math.min(last, from + leap),
    };
    if (event.key === "Enter" && at >= 0) options.open?.(at);
    else if (event.key in goals) choose(goals[event.key]);
    else return;
    event.preventDefault();
  });

  function choose(index) {
    if (index < 0 || index >= options.count()) return;
    options.select(index);
    draw();
  }

  const observer = new ResizeObserver(() => draw());
  return {
    canvas,
    draw,
    attach: () => observer.observe(canvas.parentElement),
    detach: () => observer.disconnect(),
  };
}
