// The heatmap: layers down, steps across, drawn from tiles on one canvas.

import { NOT_SAMPLED } from "./colours.js";
import { element, shortened } from "./dom.js";
import { fold, paint, patternOf } from "./painter.js";
import { Tiles } from "./tiles.js";

// Pixels for the names of rows, and for the values of the charts above and below: fewer on a narrow screen.
export const GUTTER = Math.max(104, Math.min(236, Math.round(0.3 * innerWidth)));
export const MARGIN = 14; // to the right
const AXIS = 22;
const LINE = 13; // pixels that a name needs
const STRIP = 14; // for the sign that opens and closes a group
const COARSER = 2; // levels; the first picture comes from these

export class Heatmap {
  constructor(run, columns, span, actions) {
    this.span = span;
    this.actions = actions; // onRows, onPoint, onPick, onGroup
    this.columns = columns;
    this.tiles = new Tiles(run, columns, () => this.draw());
    this.top = 0; // first row that is shown, and how many: both may be fractions
    this.visible = 1;
    this.finest = 0;
    this.canvas = element("canvas", {
      class: "heatmap", tabindex: "0", role: "img",
      "aria-label": "Heatmap of layers by steps. Arrow keys move it, plus and minus zoom; “Table” shows its numbers.",
    });
    this.overlay = element("canvas", { class: "overlay", "aria-hidden": "true" });
    this.node = element("div", { class: "plot grow" }, this.canvas, this.overlay);
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.frames = [];
    this.ends = [span.onChange(() => this.draw()), span.onCursor(() => this.drawCursor())];
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.node);
  }

  end() {
    this.observer.disconnect();
    for (const end of this.ends) end();
    this.tiles.choose({});
  }

  /** `finest` is the finest level of tiles that can be had. */
  show({ rows, colouring, query, finest = 0 }) {
    const same = this.rows && rows.count === this.rows.count;
    Object.assign(this, { rows, colouring, finest });
    if (!same) this.showRows(0, rows.count);
    if (JSON.stringify(query) !== this.tiles.subject) this.tiles.choose(query);
    this.draw();
  }

  showRows(top, visible) {
    const count = this.rows?.count ?? 1;
    this.visible = Math.max(Math.min(4, count), Math.min(count, visible));
    this.top = Math.max(0, Math.min(count - this.visible, top));
    this.actions.onRows(this.top, this.visible);
    this.draw();
  }

  zoomRows(factor, around = this.top + this.visible / 2) {
    this.showRows(around - (around - this.top) * factor, this.visible * factor);
  }

  resize() {
    const { width, height } = this.node.getBoundingClientRect();
    this.ratio = window.devicePixelRatio || 1;
    this.width = Math.floor(width);
    this.height = Math.floor(height);
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.round(this.width * this.ratio);
      canvas.height = Math.round(this.height * this.ratio);
    }
    this.#paintNow();
  }

  get plot() {
    return { left: GUTTER, top: 0, width: Math.max(1, this.width - GUTTER - MARGIN), height: Math.max(1, this.height - AXIS) };
  }

  x(step) { return GUTTER + ((step - this.span.first) / (this.span.last - this.span.first)) * this.plot.width; }
  stepAt(x) { return this.span.first + ((x - GUTTER) / this.plot.width) * (this.span.last - this.span.first); }
  y(row) { return ((row - this.top) / this.visible) * this.plot.height; }
  rowAt(y) { return this.top + (y / this.plot.height) * this.visible; }

  draw() {
    this.due ??= requestAnimationFrame(() => { this.due = null; this.#paintNow(); });
  }

  get level() {
    const steps = (this.span.last - this.span.first) / (this.plot.width * (this.ratio || 1));
    return Math.max(this.finest, Math.floor(Math.log2(Math.max(1e-9, steps))));
  }

  #paintNow() {
    if (!this.width || !this.rows || !this.colouring) return;
    const began = performance.now();
    const { context, ratio, plot } = this, style = getComputedStyle(this.node);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = style.getPropertyValue("--surface");
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.inks = { text: style.getPropertyValue("--text"), quiet: style.getPropertyValue("--quiet"), line: style.getPropertyValue("--line") };
    if (this.rows.count) {
      this.#drawTiles(plot);
      this.#drawNames(plot);
    } else {
      this.#say(plot, "No layer matches the filter.");
    }
    this.#drawSteps(plot);
    this.drawCursor();
    this.frames.push(performance.now() - began);
    if (this.frames.length > 240) this.frames.shift();
  }

  #drawTiles(plot) {
    const { context, span, columns } = this, level = this.level, width = columns * 2 ** level;
    const shown = [], missing = [];
    const last = Math.min(span.last, span.extent.last);
    for (let index = Math.floor(Math.max(0, span.first) / width); index * width < last; index++) {
      const tile = this.tiles.get(level, index);
      if (tile) shown.push(tile);
      if (!tile || tile.stale) missing.push({ level, index });
    }
    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top, plot.width, plot.height);
    context.clip();
    context.imageSmoothingEnabled = false;
    const waiting = missing.some(({ index }) => !this.tiles.get(level, index));
    const all = [...(waiting ? this.tiles.standIns(span.first, span.last, level) : []), ...shown];
    const bundle = this.rows.bundle(this.#bundleSize(plot));
    let before = null;
    const painted = all.map((tile) => {
      const next = before?.level === tile.level && before.index === tile.index - 1 ? before.painted : null;
      before = tile;
      return [tile, paint(tile, columns, bundle, this.colouring, next)];
    });
    for (const [tile, { picture }] of painted) this.#place(context, tile, picture, bundle);
    this.colouring.patterns.forEach((mark, place) => {
      const masked = painted.filter(([, { masks }]) => masks[place]);
      if (masked.length) this.#drawPattern(mark, masked.map(([tile, { masks }]) => [tile, masks[place]]), bundle);
    });
    context.restore();
    this.#say(plot, this.tiles.failed?.message ?? (waiting && !all.length ? "loading …" : ""));
    this.tiles.want(this.#inOrder(missing, level, waiting));
  }

  #say(plot, words) {
    this.context.font = "13px system-ui, sans-serif";
    this.context.textAlign = "left";
    this.context.textBaseline = "top";
    this.context.fillStyle = this.inks.quiet;
    if (words) this.context.fillText(words, plot.left + 12, plot.top + 12);
  }

  /** Coarse tiles first where there is nothing yet, then those in sight, then their neighbours. */
  #inOrder(missing, level, waiting) {
    const coarse = level + COARSER, wide = this.columns * 2 ** coarse, order = [];
    if (waiting) {
      for (let index = Math.floor(Math.max(0, this.span.first) / wide); index * wide < this.span.last; index++) order.push({ level: coarse, index });
    }
    return [...order, ...missing];
  }

  #bundleSize(plot) {
    const squeezed = this.visible / (plot.height * this.ratio);
    return squeezed <= 1 ? 1 : Math.ceil(squeezed);
  }

  #place(context, tile, picture, bundle) {
    const width = this.columns * 2 ** tile.level, left = this.x(tile.index * width), right = this.x((tile.index + 1) * width);
    const top = this.y(0), bottom = this.y(picture.height * bundle.size);
    context.drawImage(picture, left, top, right - left, bottom - top);
  }

  #drawPattern(mark, masked, bundle) {
    this.stencil ??= document.createElement("canvas");
    this.stencil.width = this.canvas.width;
    this.stencil.height = this.canvas.height;
    const pen = this.stencil.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.imageSmoothingEnabled = false;
    for (const [tile, mask] of masked) this.#place(pen, tile, mask, bundle);
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.globalCompositeOperation = "source-in";
    pen.fillStyle = pen.createPattern(patternOf(mark, this.ratio), "repeat");
    pen.fillRect(0, 0, this.stencil.width, this.stencil.height);
    this.context.save();
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.drawImage(this.stencil, 0, 0);
    this.context.restore();
  }

  #drawNames(plot) {
    const { context } = this, height = plot.height / this.visible;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = this.inks.text;
    const last = Math.min(this.rows.count, Math.ceil(this.top + this.visible));
    const grouped = this.rows.groups.length > 1 || this.rows.groups.some((group) => group.isClosed);
    if (height >= LINE || !grouped) {
      const every = Math.max(1, Math.ceil(LINE / height));
      for (let row = Math.floor(this.top); row < last; row++) {
        if (row % every === 0) this.#name(this.rows.rows[row], this.y(row + 0.5), grouped ? STRIP : 4);
      }
    }
    if (grouped) this.#drawGroups(plot, height < LINE);
  }

  #name(row, y, indent) {
    const { beginsAlike } = this.rows, label = beginsAlike ? `…${row.label.slice(beginsAlike)}` : row.label;
    const text = row.layer ? label : `${label}  (${row.members.length})`;
    this.context.fillText(fitting(this.context, text, GUTTER - 10 - indent, this.rows.endsAlike), GUTTER - 6, y);
  }

  #drawGroups(plot, named) {
    const { context, inks } = this;
    let free = -Infinity;
    for (const group of this.rows.groups) {
      const top = Math.max(0, this.y(group.first)), bottom = Math.min(plot.height, this.y(group.first + group.count));
      if (bottom <= 0 || top >= plot.height || !group.name) continue;
      const middle = Math.max(LINE / 2, named ? (top + bottom) / 2 : top + Math.min(LINE, bottom - top) / 2);
      if (middle - LINE / 2 < free || (group.members < 2 && !named)) continue;
      free = middle + LINE / 2;
      context.strokeStyle = inks.line;
      context.beginPath();
      context.moveTo(2, Math.round(top) + 0.5);
      context.lineTo(GUTTER - 2, Math.round(top) + 0.5);
      if (bottom - top >= LINE) context.stroke();
      context.fillStyle = inks.quiet;
      context.textAlign = "left";
      if (group.members > 1) context.fillText(group.isClosed ? "▸" : "▾", 2, middle);
      context.textAlign = "right";
      if (!named) continue;
      context.fillStyle = inks.text;
      context.fillText(fitting(context, group.isClosed ? `${group.name}  (${group.members})` : group.name, GUTTER - 10 - STRIP), GUTTER - 6, middle);
    }
  }

  #drawSteps(plot) {
    const { context, inks } = this;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.textAlign = "center";
    context.fillStyle = inks.quiet;
    context.strokeStyle = inks.line;
    for (const [value, word] of this.span.axis.marks(this.span.first, this.span.last, plot.width / 110)) {
      const x = this.x(value);
      if (x < plot.left - 1 || x > plot.left + plot.width - 8) continue;
      context.fillText(word, x, plot.height + 7);
      context.beginPath();
      context.moveTo(Math.round(x) + 0.5, plot.height);
      context.lineTo(Math.round(x) + 0.5, plot.height + 4);
      context.stroke();
    }
    context.textAlign = "right";
    context.fillText(this.span.axis.name, GUTTER - 24, plot.height + 7);
  }

  drawCursor() {
    if (!this.width) return;
    const pen = this.overlay.getContext("2d"), { plot } = this;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    if (this.span.cursor === null) return;
    const x = this.x(this.span.cursor);
    if (x < plot.left || x > plot.left + plot.width) return;
    for (const [colour, wide] of [["#000a", 3], ["#fff", 1]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = wide;
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, plot.height);
      if (this.row !== undefined && this.row !== null) {
        const y = Math.max(0, this.y(this.row)), low = Math.min(plot.height, this.y(this.row + 1));
        if (low - y >= 4) pen.rect(plot.left, y, plot.width, low - y);
      }
      pen.stroke();
    }
  }

  /** What is drawn at a step and row: the code, and the steps that it stands for. Null while it has not arrived. */
  cell(step, row) {
    const entry = this.rows?.rows[row];
    if (!entry || step < 0) return null;
    for (let level = this.level; level <= this.level + COARSER; level++) {
      const size = 2 ** level, index = Math.floor(step / (this.columns * size)), tile = this.tiles.get(level, index);
      if (!tile) continue;
      const column = Math.floor(step / size) - index * this.columns;
      const best = fold(tile.codes, this.columns, entry.members, 0, entry.members.length, this.colouring.rank, new Uint16Array(this.columns));
      const first = (index * this.columns + column) * size, seen = best.subarray(0, column).findLastIndex((code) => code !== NOT_SAMPLED);
      const earlier = best[column] === NOT_SAMPLED && seen >= 0 ? { code: best[seen], first: (index * this.columns + seen) * size } : null;
      return { code: best[column], earlier, first, last: Math.min(first + size - 1, this.span.extent.last - 1), entry };
    }
    return null;
  }

  /** The numbers in sight: for each row its codes, one for each of `steps`. */
  *inSight() {
    const size = 2 ** this.level, from = Math.floor(Math.max(0, this.span.first) / size), to = Math.ceil(Math.min(this.span.last, this.span.extent.last) / size);
    const steps = Array.from({ length: Math.max(0, to - from) }, (_, place) => (from + place) * size);
    yield steps;
    const best = new Uint16Array(this.columns);
    for (let row = Math.floor(this.top); row < Math.min(this.rows.count, Math.ceil(this.top + this.visible)); row++) {
      const entry = this.rows.rows[row], codes = new Uint16Array(steps.length).fill(NOT_SAMPLED);
      for (let index = Math.floor(from / this.columns); index * this.columns < to; index++) {
        const tile = this.tiles.get(this.level, index);
        if (!tile) continue;
        fold(tile.codes, this.columns, entry.members, 0, entry.members.length, this.colouring.rank, best);
        for (let column = 0; column < this.columns; column++) {
          const place = index * this.columns + column - from;
          if (place >= 0 && place < codes.length) codes[place] = best[column];
        }
      }
      yield { entry, codes };
    }
  }
}

const widths = new Map();

/** As much of a text as fits, its end rather than its beginning: it says more. Or both, where ends are alike. */
function fitting(context, text, width, bothEnds = false) {
  const key = `${text} ${width} ${bothEnds}`;
  if (!widths.has(key)) {
    // A canvas has no <bdi>: marks that turn text around are shown as what they are.
    let kept = shortened(text, 80).replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "�");
    const whole = kept;
    for (let most = whole.length; bothEnds && most > 4 && context.measureText(kept).width > width; most--) kept = shortened(whole, most);
    while (kept.length > 4 && context.measureText(kept).width > width) kept = `…${kept.slice(2)}`;
    if (widths.size > 20_000) widths.clear();
    widths.set(key, kept);
  }
  return widths.get(key);
}
