// A line over steps. It stands in line with the heatmap: the same steps are at the same place.

import { paintBands } from "./bands.js";
import { densityNote, densityRows, highest, lowest, paintDensity } from "./density.js";
import { button, csv, dialog, download, element, table } from "./dom.js";
import { GUTTER, MARGIN } from "./heatmap.js";
import { short, step as stepText, ticks } from "./numbers.js";
import { patternOf } from "./painter.js";
import { savePicture } from "./saving.js";

const TOP = 32; // for the title and the tools
const AXIS = 6;
const NAMED_AXIS = 24;
const NARROW = 64; // pixels for the values of a chart that stands by itself
const HATCHED = 7; // pixels, along the foot, that say where a number is not finite
const SOON = 90; // milliseconds after the last move at which new points are asked for

export class Chart {
  /** `sources` give points for (first, last, columns), a line each; `options`: title, names, logarithmic, smoothing, bands, between, tools; `axis` for a chart by itself. */
  constructor(span, sources, options) {
    this.span = span;
    this.sources = [sources].flat();
    this.options = { logarithmic: false, smoothing: 0, bands: [], names: [""], ...options };
    this.canvas = element("canvas", { role: "img", "aria-label": `${this.options.title} over steps; “Table” shows its numbers` });
    this.readout = element("output", { class: "readout" });
    this.node = element("div", { class: "plot chart" }, this.canvas,
      element("div", { class: "caption" }, element("strong", {}, this.options.label ?? this.options.title), this.note = element("span", { class: "quiet small" }), this.readout),
      element("div", { class: "tools" }, this.options.tools ?? [], this.#tools()));
    this.lines = [];
    this.gutter = this.options.axis ? NARROW : GUTTER; // in line with the heatmap, where there is one
    this.ends = [span.onChange(() => { this.draw(); this.#reload(); }), span.onCursor(() => this.draw())];
    this.observer = new ResizeObserver(() => { this.resize(); this.reload(); });
    this.observer.observe(this.node);
    this.#handle();
  }

  end() {
    this.observer.disconnect();
    clearTimeout(this.soon);
    for (const end of this.ends) end();
    this.node.remove();
  }

  set(options) {
    Object.assign(this.options, options);
    this.draw();
  }

  #tools() {
    const name = this.options.title.replaceAll(" ", "_");
    const several = this.sources.length !== 1, titles = [...(several ? ["curve"] : []), "step", "smallest", "mean", "largest"];
    const rows = () => [...this.#lineRows(several), ...densityRows(this.density)];
    return [
      button("Table", () => dialog(this.options.title, table(titles, rows().map((row) => row.map((value) => typeof value === "number" ? short(value, 6) : value)))), { class: "quiet" }),
      button("CSV", () => download(`${name}.csv`, csv(titles, rows())), { class: "quiet" }),
      button("PNG", () => savePicture(`${name}.png`, this.canvas, { ratio: this.ratio, title: this.options.title, ...this.#legend() }), { class: "quiet" }),
    ];
  }

  #legend() {
    const { first, last } = this.span, steps = `steps ${stepText(first)} to ${stepText(Math.max(first, last - 1))}`;
    const names = this.options.names.map((name, place) => [name.slice(0, 40), this.options.inks?.[place] ?? "--accent"]).filter(([name]) => name);
    return { names, note: [this.note.textContent, steps].filter(Boolean).join(" · ") };
  }

  #lineRows(several) {
    return this.lines.flatMap((line, number) => line.steps.map((step, place) => [
      ...(several ? [this.options.names[number]] : []), step, ...["minimum", "mean", "maximum"].map((part) => cell(line, part, place))]));
  }

  #reload() {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.reload(), SOON);
  }

  async reload() {
    const { first, last } = this.span, edge = (last - first) / 4;
    this.asked?.abort();
    const asked = this.asked = new AbortController();
    const columns = Math.max(16, Math.min(2048, Math.round(1.5 * this.plot.width)));
    try {
      const wanted = [Math.max(0, Math.floor(first - edge)), Math.ceil(last + edge)], { density } = this.options;
      const [spread, ...lines] = await Promise.all([density?.(...wanted, Math.min(columns, 480), asked.signal), ...this.sources.map((get) => get(...wanted, columns, asked.signal))]);
      this.density = spread?.steps.length ? spread : null;
      this.note.textContent = densityNote(this.density);
      this.lines = lines.map((line) => ({ ...line, nonfiniteAt: new Set(line.nonfinite) }));
      this.problem = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.problem = error.message;
    }
    this.draw();
  }

  resize() {
    const { width, height } = this.node.getBoundingClientRect();
    this.ratio = window.devicePixelRatio || 1;
    this.width = Math.floor(width);
    this.height = Math.floor(height);
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.#paint();
  }

  get plot() {
    return { left: this.gutter, top: TOP, width: Math.max(1, (this.width || 800) - this.gutter - MARGIN), height: Math.max(1, (this.height || 100) - TOP - (this.options.axis ? NAMED_AXIS : AXIS)) };
  }

  x(step) { return this.gutter + ((step - this.span.first) / (this.span.last - this.span.first)) * this.plot.width; }

  draw() {
    this.due ??= requestAnimationFrame(() => { this.due = null; this.#paint(); });
  }

  #paint() {
    if (!this.width) return;
    const pen = this.canvas.getContext("2d"), style = getComputedStyle(this.node), { plot } = this;
    const ink = (name) => style.getPropertyValue(name);
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.fillStyle = ink("--surface");
    pen.fillRect(0, 0, this.width, this.height);
    paintBands(pen, plot, ink, this.options.bands, (step) => this.x(step));
    if (this.options.axis) this.#paintSteps(pen, plot, ink);
    this.readout.textContent = this.problem ?? "";
    const range = this.#range();
    if (!range) {
      pen.fillStyle = ink("--quiet");
      pen.font = "12px system-ui, sans-serif";
      if (this.lines.length && this.lines.every((line) => !line.nonfinite.length)) pen.fillText("no numbers in these steps", this.gutter + 8, plot.top + plot.height / 2);
    } else {
      this.#paintScale(pen, plot, range, ink);
      if (this.density) paintDensity(pen, plot, ink("--accent"), this.density, (step) => this.x(step), (value) => this.#y(value, plot, range));
      else this.#paintBetween(pen, plot, range, ink("--accent"));
      this.lines.forEach((line, number) => this.#paintLine(pen, plot, range, line, ink(this.options.inks?.[number] ?? "--accent")));
    }
    for (const line of this.lines) this.#paintNonfinite(pen, plot, line, ink);
    this.#paintCursor(pen, plot, ink);
  }

  #inSight({ steps }, place) {
    const next = steps[place + 1] ?? steps[place] + 1;
    return next >= this.span.first && steps[place] <= this.span.last;
  }

  #range() {
    let low = Infinity, high = -Infinity;
    for (const line of this.lines) {
      line.steps.forEach((_, place) => {
        const [least, most] = [line.minimum[place], line.maximum[place]];
        if (least === null || !this.#inSight(line, place)) return;
        if (!this.options.logarithmic || least > 0) low = Math.min(low, least);
        if (!this.options.logarithmic || most > 0) high = Math.max(high, most);
      });
    }
    if (this.density) [low, high] = [Math.min(low, lowest(this.density)), Math.max(high, highest(this.density))];
    if (!(low <= high)) return null;
    if (this.options.logarithmic) {
      const [from, to] = [Math.log10(low), Math.log10(high)], pad = Math.max(0.05, 0.06 * (to - from));
      const marks = (low, high, wanted) => decades(low, high, to - from, wanted).map((value) => [Math.log10(value), short(value, 4)]);
      return { low: from - pad, high: to + pad, of: (value) => (value > 0 ? Math.log10(value) : -Infinity), marks };
    }
    const pad = 0.06 * (high - low) || Math.abs(high) * 0.05 || 0.5;
    const marks = (...span) => ticks(...span).map((value) => [value, short(value, 4)]);
    return { low: low - pad, high: high + pad, of: (value) => value, marks };
  }

  #y(value, plot, range) {
    const place = (range.of(value) - range.low) / (range.high - range.low);
    return plot.top + plot.height * (1 - Math.max(-0.05, Math.min(1.05, place)));
  }

  #paintScale(pen, plot, range, ink) {
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [place, text] of range.marks(range.low, range.high, Math.max(2, plot.height / 30))) {
      const y = Math.round(plot.top + plot.height * (1 - (place - range.low) / (range.high - range.low))) + 0.5;
      if (y < plot.top + 5 || y > plot.top + plot.height - 3) continue; // its number would be cut off
      pen.strokeStyle = ink("--line");
      pen.beginPath();
      pen.moveTo(plot.left, y);
      pen.lineTo(plot.left + plot.width, y);
      pen.stroke();
      pen.fillStyle = ink("--quiet");
      pen.fillText(text, this.gutter - 6, y);
    }
  }

  #paintLine(pen, plot, range, line, colour) {
    pen.save();
    pen.beginPath();
    pen.rect(plot.left, plot.top - 2, plot.width, plot.height + 4);
    pen.clip();
    const { steps, minimum, maximum, mean } = line, smooth = this.options.smoothing;
    pen.fillStyle = colour;
    pen.globalAlpha = smooth || this.lines.length > 1 ? 0.14 : 0.28;
    steps.forEach((step, place) => {
      if (minimum[place] === null) return;
      const left = this.x(step), right = this.x(steps[place + 1] ?? step + 1), top = this.#y(maximum[place], plot, range);
      const height = this.#y(minimum[place], plot, range) - top;
      if (height > 0.5) pen.fillRect(left, top, Math.max(1, Math.min(right - left, 24)), height);
    });
    this.#stroke(pen, plot, range, line, mean, colour, smooth ? 0.3 : 1);
    if (smooth) this.#stroke(pen, plot, range, line, smoothed(mean, smooth), colour, 1);
    pen.restore();
  }

  /** The room between two lines, where both have a number. */
  #paintBetween(pen, plot, range, colour) {
    const [lower, upper] = (this.options.between ?? []).map((number) => this.lines[number]);
    if (!lower || !upper) return;
    pen.save();
    pen.beginPath();
    pen.rect(plot.left, plot.top, plot.width, plot.height);
    pen.clip();
    pen.fillStyle = colour;
    pen.globalAlpha = 0.16;
    const above = new Map(upper.steps.map((step, place) => [step, upper.mean[place]]));
    const both = lower.steps.map((step, place) => [step, lower.mean[place], above.get(step) ?? null]).filter(([, low, high]) => low !== null && high !== null);
    pen.beginPath();
    for (const [step, , high] of both) pen.lineTo(this.x(step), this.#y(high, plot, range));
    for (const [step, low] of both.reverse()) pen.lineTo(this.x(step), this.#y(low, plot, range));
    pen.fill();
    pen.restore();
  }

  #stroke(pen, plot, range, line, values, colour, alpha) {
    pen.globalAlpha = alpha;
    pen.strokeStyle = colour;
    pen.lineWidth = 1.5;
    pen.lineJoin = "round";
    pen.beginPath();
    let broken = true;
    line.steps.forEach((step, place) => {
      // A number that is missing between others was not sampled; one that is not finite breaks the line.
      if (values[place] === null || (this.options.logarithmic && values[place] <= 0)) { broken ||= line.nonfiniteAt.has(place); return; }
      const x = this.x(step), y = this.#y(values[place], plot, range);
      if (broken) { pen.moveTo(x, y); pen.lineTo(x + 0.1, y); } else pen.lineTo(x, y);
      broken = false;
    });
    pen.stroke();
    pen.globalAlpha = 1;
  }

  /** Hatched, as in the heatmap: neither needs its colour to be told. */
  #paintNonfinite(pen, plot, { steps, nonfinite }, ink) {
    if (!nonfinite.length) return;
    const colour = ink("--nonfinite"), pattern = pen.createPattern(patternOf({ pattern: "hatch", over: colour }, 1), "repeat");
    for (const place of nonfinite) {
      const left = this.x(steps[place]), right = this.x(steps[place + 1] ?? steps[place] + 1);
      if (right < plot.left || left > plot.left + plot.width) continue;
      const from = Math.max(plot.left, left), wide = Math.max(1, Math.min(right, plot.left + plot.width) - from);
      pen.fillStyle = colour;
      pen.globalAlpha = 0.1;
      pen.fillRect(from, plot.top, wide, plot.height);
      pen.globalAlpha = 1;
      pen.fillStyle = pattern;
      pen.fillRect(from, plot.top + plot.height - HATCHED, wide, HATCHED);
    }
  }

  /** Charts that stand by themselves name their steps. */
  #paintSteps(pen, plot, ink) {
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    pen.fillStyle = ink("--quiet");
    pen.strokeStyle = ink("--line");
    pen.lineWidth = 1;
    const base = plot.top + plot.height;
    pen.textAlign = "center";
    for (const [value, word] of this.span.axis.marks(this.span.first, this.span.last, plot.width / 110)) {
      const x = this.x(value);
      if (x < plot.left - 1 || x > plot.left + plot.width - 8) continue;
      pen.fillText(word, x, base + 7);
      pen.beginPath();
      pen.moveTo(Math.round(x) + 0.5, base);
      pen.lineTo(Math.round(x) + 0.5, base + 4);
      pen.stroke();
    }
    pen.textAlign = "right";
    pen.fillText(this.span.axis.name, this.gutter - 14, base + 7);
  }

  #paintCursor(pen, plot, ink) {
    const { cursor } = this.span;
    if (cursor === null || this.x(cursor) < plot.left || this.x(cursor) > plot.left + plot.width) return;
    pen.strokeStyle = ink("--text");
    pen.globalAlpha = 0.6;
    pen.beginPath();
    pen.moveTo(this.x(cursor), plot.top);
    pen.lineTo(this.x(cursor), plot.top + plot.height);
    pen.stroke();
    pen.globalAlpha = 1;
    const words = this.lines.map((line, number) => this.#word(line, number, cursor)).filter(Boolean);
    if (words.length) this.readout.textContent = `${this.span.axis.word(cursor)}: ${words.join(" · ")}`;
  }

  /** What a line says at a step. */
  #word(line, number, cursor) {
    const place = line.steps.findLastIndex((step) => step <= cursor);
    if (place < 0) return "";
    const value = cell(line, "mean", place), [least, most] = [line.minimum[place], line.maximum[place]];
    const extent = this.lines.length === 1 && least !== null && least !== most ? ` (${short(least)} to ${short(most)})` : "";
    const name = this.options.names[number];
    return `${name ? `${name.slice(0, 24)} ` : ""}${typeof value === "number" ? short(value, 4) + extent : value || "not sampled"}`;
  }

  /** Dragging chooses steps; a double click shows all. */
  #handle() {
    const stepAt = (x) => this.span.first + ((x - this.gutter) / this.plot.width) * (this.span.last - this.span.first);
    let from = null;
    const mark = element("div", { class: "brush" });
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.offsetX < this.gutter) return;
      from = event.offsetX;
      this.canvas.setPointerCapture(event.pointerId);
      this.node.append(mark);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const step = Math.floor(stepAt(event.offsetX));
      this.span.point(event.offsetX >= this.gutter ? step : null);
      if (from === null) return;
      mark.style.left = `${Math.min(from, event.offsetX)}px`;
      mark.style.width = `${Math.abs(event.offsetX - from)}px`;
    });
    this.canvas.addEventListener("pointerup", (event) => {
      mark.remove();
      mark.style.width = "0";
      if (from !== null && Math.abs(event.offsetX - from) > 5) {
        const [one, other] = [stepAt(from), stepAt(event.offsetX)];
        this.span.show(Math.min(one, other), Math.max(one, other));
      }
      from = null;
    });
    this.canvas.addEventListener("pointercancel", () => { from = null; mark.remove(); });
    this.canvas.addEventListener("pointerleave", () => this.span.point(null));
    this.canvas.addEventListener("dblclick", () => this.span.showAll());
  }
}

/** Powers of ten where there are several; 1, 2 and 5 in about one; round numbers in less. */
function decades(low, high, span, wanted) {
  if (span > 1.5) {
    const every = Math.max(1, Math.ceil(span / wanted)), first = Math.ceil(low / every);
    return Array.from({ length: Math.max(0, Math.floor(high / every) - first + 1) }, (_, place) => 10 ** (every * (first + place)));
  }
  if (span < 0.4) return ticks(10 ** low, 10 ** high, wanted).filter((value) => value > 0);
  const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, place) => 10 ** (Math.floor(low) + place));
  return powers.flatMap((power) => [power, 2 * power, 5 * power]).filter((value) => value >= 10 ** low && value <= 10 ** high);
}

function cell(line, part, place) {
  return line[part][place] ?? (line.nonfiniteAt.has(place) ? "not finite" : "");
}

/** A running mean that begins anew after every gap: it never draws over what is missing. */
export function smoothed(values, weight) {
  let mean = 0, mass = 0;
  return values.map((value) => {
    if (value === null) { mean = 0; mass = 0; return null; }
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}
