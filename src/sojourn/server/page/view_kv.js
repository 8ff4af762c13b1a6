// View 4: the KV blocks, a cell each, by state, with their owner; evictions flash. Owns the cell and the owner selected.

import { h, panel, reconcile, roving, setAttribute, setText } from "./dom.js";
import { count, percent, shortId } from "./format.js";
import { t } from "./i18n.js";
import { CanvasPicker } from "./picker.js";
import { swatch } from "./request_account.js";
import { colour } from "./stations.js";
import { state } from "./store.js";

const NAMES = ["free", "cached", "live", "shared"]; // by code
const BIGGEST = 26;
const SMALLEST = 3;
const TALLEST = 440;
const FLASH_MS = 2500;
let selected = -1;
let owner = null;

/** The largest cell with which all blocks fit under the tallest grid. */
function cellSize(width) {
  const blocks = state.kv.num_blocks;
  for (let size = BIGGEST; size > SMALLEST; size -= 1) {
    if (Math.ceil(blocks / Math.floor(width / size)) * size <= TALLEST) return size;
  }
  return SMALLEST;
}

export function mount(root) {
  let size = BIGGEST;
  let columns = 1;
  const picker = new CanvasPicker({
    label: t("kv.label"),
    height: (width) => {
      size = cellSize(Math.max(1, width));
      columns = Math.max(1, Math.floor(width / size));
      return Math.ceil(state.kv.num_blocks / columns) * size;
    },
    count: () => state.kv.num_blocks,
    columns: () => columns,
    selected: () => selected,
    select: (index) => {
      selected = index;
      update();
    },
    indexAt: (x, y) => (x < columns * size ? Math.floor(y / size) * columns + Math.floor(x / size) : -1),
    describe,
    open: (index) => {
      const id = state.kv.owners[index];
      if (id) location.hash = `#/request/${encodeURIComponent(id)}`;
    },
    draw: (context, width, height, hovered) => paint(context, size, columns, hovered),
  });
  const legend = h("div", { class: "legend" });
  const said = h("div", { class: "detail" });
  const holders = h("tbody", {});
  const settle = roving(holders, "button");
  root.append(h("h1", { class: "hidden" }, t("tab.kv")), h("div", { class: "toolbar" }, legend),
    h("div", { class: "columns kv" },
      h("section", { class: "panel" }, h("div", { class: "canvas" }, picker.canvas), said),
      panel(t("kv.holders"), h("div", { class: "scroll tall" }, h("table", { class: "holders" }, holders)))));
  picker.attach();

  function update() {
    const { kv } = state;
    const cells = ["live", "cached", "free"].map((name) => [swatch(name), `${t(`kv.${name}`)} ${count(kv[name])} (${percent(kv[name], kv.num_blocks)})`]);
    cells.splice(1, 0, [swatch("shared"), `${t("kv.shared")} ${count(kv.states.filter((code) => code === 3).length)}`]);
    cells.push([swatch("evicted"), `${t("kv.evicted")} ${count(kv.evictions)}`],
      ["", t("kv.size", { blocks: count(kv.num_blocks), tokens: count(kv.block_size) })]);
    const texts = cells.map(([, text]) => text).join();
    if (legend.dataset.texts !== texts) {
      legend.dataset.texts = texts;
      legend.replaceChildren(...cells.map(([mark, text]) => h("span", {}, mark, text)));
    }
    setText(said, selected >= 0 && selected < kv.num_blocks ? describe(selected).join(" \u00b7 ") : t("kv.hint"));
    drawHolders(holders, update);
    settle();
    picker.draw();
  }
  update();
  return {
    update,
    destroy() {
      picker.detach();
    },
  };
}

function describe(index) {
  const { states, owners, block_size: blockSize } = state.kv;
  const name = NAMES[states[index]];
  const lines = [t("kv.block", { block: index, tokens: blockSize }), t(`kv.${name}`)];
  if (owners[index]) lines.push(t("kv.owner", { id: shortId(owners[index]) }));
  return lines;
}

function drawHolders(place, update) {
  const tally = new Map();
  state.kv.owners.forEach((id, block) => {
    if (id && state.kv.states[block] > 1) tally.set(id, (tally.get(id) ?? 0) + 1);
  });
  const rows = [...tally].sort((a, b) => b[1] - a[1]).slice(0, 60);
  const create = ([id]) => {
    const mark = h("button", { type: "button", class: "id", title: id, onclick: () => {
      owner = owner === id ? null : id;
      update();
    } }, shortId(id));
    return h("tr", {}, h("td", {}, mark), h("td", { class: "number" }),
      h("td", {}, h("a", { href: `#/request/${encodeURIComponent(id)}` }, t("kv.open"))));
  };
  reconcile(place, rows, ([id]) => id, create, (row, [id, blocks]) => {
    setAttribute(row.firstChild.firstChild, "aria-pressed", String(owner === id));
    setText(row.children[1], count(blocks));
  });
  if (owner && !tally.has(owner)) owner = null;
}

function paint(context, size, columns, hovered) {
  const { states, owners, evictedAt, num_blocks: blocks } = state.kv;
  const gap = size > 5 ? 1 : 0;
  const side = size - gap;
  const fills = NAMES.map((name) => colour(`c-${name}`));
  const wanted = owner ?? (hovered >= 0 && states[hovered] > 1 ? owners[hovered] : null);
  const time = performance.now();
  for (let block = 0; block < blocks; block += 1) {
    const x = (block % columns) * size;
    const y = Math.floor(block / columns) * size;
    const code = states[block];
    context.globalAlpha = wanted && owners[block] !== wanted ? 0.3 : 1;
    context.fillStyle = fills[code];
    context.fillRect(x, y, side, side);
    if (code === 3 && size > 6) {
      context.fillStyle = colour("panel");
      context.fillRect(x + side / 2 - 1.5, y + side / 2 - 1.5, 3, 3);
    }
    const age = evictedAt[block] ? time - evictedAt[block] : Infinity;
    if (age < FLASH_MS) {
      context.globalAlpha = 1 - age / FLASH_MS;
      context.strokeStyle = colour("c-evicted");
      context.lineWidth = Math.max(1.5, size / 6);
      context.strokeRect(x + 0.75, y + 0.75, side - 1.5, side - 1.5);
    }
  }
  context.globalAlpha = 1;
  if (selected >= 0 && selected < blocks) {
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect((selected % columns) * size - 0.5, Math.floor(selected / columns) * size - 0.5, size, size);
  }
}
