// One run: the verdict, the loss, the heatmap, and rows of it as lines.

import * as address from "../address.js";
import { KINDS } from "../axis.js";
import { Chart } from "../chart.js";
import { Colouring } from "../colours.js";
import { element, named, notice } from "../dom.js";
import { Heatmap } from "../heatmap.js";
import { handle } from "../hand.js";
import { legend } from "../legend.js";
import { Readout } from "../readout.js";
import { Rows, usualDepth } from "../rows.js";
import { follow, getJson } from "../server.js";
import { Span } from "../span.js";
import { step } from "../numbers.js";
import { Toolbar } from "../toolbar.js";
import { extent, verdict } from "../verdict.js";
import { status } from "../words.js";

const MOST_PINS = 8;
const JUDGE_AGAIN = 4000; // milliseconds: what is told of a run that grows counts its steps
const STATISTICS = ["maximum", "mean", "minimum"];
const SPREAD = [["abs_p05", "5 %", "--quiet"], ["abs_p50", "median", "--text"], ["abs_p95", "95 %", "--quiet"], ["max_abs", "largest", "--run-2"]];

/** `considerate`: this is a part of a page that scrolls. */
export async function open(query, onDetails, { considerate = false } = {}) {
  const [run, colours] = await Promise.all([getJson("run", { run: query.run }), getJson("colours")]);
  const page = new RunPage(run, colours, query, onDetails, considerate);
  await page.load();
  return page;
}

class RunPage {
  constructor(run, colours, query, onDetails, considerate) {
    Object.assign(this, { run, colours, onDetails, considerate });
    const names = run.quantities.map((one) => one.name);
    this.state = {
      quantity: [query.quantity, "gradient_norm"].find((name) => names.includes(name)) ?? names[0],
      statistic: STATISTICS.includes(query.statistic) ? query.statistic : STATISTICS[0],
      scheme: query.scheme in colours.sequential ? query.scheme : "Default",
      relative: query.relative === "1",
      filter: query.filter ?? "",
      depth: query.depth === undefined ? null : Number(query.depth),
      closed: new Set((query.closed ?? "").split(",").filter(Boolean)),
      pins: (query.pins ?? "").split(",").filter(Boolean).map(Number),
      spread: new Set((query.spread ?? "").split(",").filter(Boolean).map(Number)), // of the pins, those shown as quantiles
      logarithmic: query.log === "1",
      smoothing: Number(query.smooth ?? 0),
      scalar: [query.scalar, "loss"].find((name) => run.scalars.includes(name)) ?? run.scalars[0],
    };
    this.span = new Span(extentOf(run.steps));
    this.span.axis.kind = KINDS.some(([kind]) => kind === query.axis) ? query.axis : "step";
    this.showSteps(query);
    this.wantedRows = query.rows?.split("-").map(Number);
    this.verdict = element("div", { class: "verdict-place", "aria-live": "polite" }, element("p", { class: "quiet" }, "Judging …"));
    this.pins = element("div", { class: "pins" });
    this.charts = new Map();
    this.#build();
  }

  #build() {
    const { run, span } = this;
    if (!run.quantities.length || !run.steps.recorded) {
      this.node = element("section", { class: "page" }, this.verdict);
      return;
    }
    this.heatmap = new Heatmap(run.id, run.tile_columns, span, {
      onRows: (top, visible) => this.#remember({ rows: visible >= this.rows.count ? null : `${top.toFixed(1)}-${visible.toFixed(1)}` }),
      onPoint: (place) => this.readout.show(place),
      onPick: (layer) => this.#pin(layer.id),
      onGroup: (name) => this.#toggle(name),
    });
    this.readout = new Readout(this.heatmap, () => this.state.quantity);
    this.heatmap.node.append(this.readout.node);
    handle(this.heatmap, this.considerate);
    this.toolbar = new Toolbar(this);
    this.legend = element("div", { class: "legend" });
    this.loss = run.scalars.length ? this.#scalarChart() : null;
    this.node = element("section", { class: "run-page" },
      element("div", { class: "first-screen" }, this.verdict, this.loss?.node ?? "", this.toolbar.node, this.heatmap.node, this.legend), this.pins);
    this.stops = [span.onChange(() => this.#remember(span.whole ? { from: null, to: null } : { from: span.first.toFixed(1), to: span.last.toFixed(1) }))];
  }

  #scalarChart() {
    const { run, span } = this;
    const get = (first, last, columns, signal) => getJson("scalar", { run: run.id, name: this.state.scalar, first, last, columns }, signal);
    return new Chart(span, get, {
      title: this.state.scalar, label: Toolbar.scalarField(this), logarithmic: this.state.logarithmic, smoothing: this.state.smoothing,
      tools: Toolbar.chartTools(this),
    });
  }

  async load() {
    this.#badge();
    if (this.heatmap) {
      await Promise.all([this.#learnTimes(), this.change({}, { first: true })]);
      this.state.pins.forEach((id) => this.#addPin(id));
    }
  }

  begin() {
    this.#judge();
    this.stop = follow(this.run.id, (progress) => this.#grow(progress), (connected, why) => this.#badge(connected ? null : why));
  }

  end() {
    this.ended = true;
    this.stop?.();
    this.stops?.forEach((stop) => stop());
    this.heatmap?.end();
    this.loss?.end();
    for (const chart of this.charts.values()) chart.end();
  }

  async #judge() {
    const diagnosis = await getJson("diagnosis", { run: this.run.id }).catch((error) => {
      this.verdict.replaceChildren(element("p", { class: "problem" }, error.message));
      return null;
    });
    if (!diagnosis || this.ended) return;
    this.diagnosis = diagnosis;
    const lossHistory = await this.#lossHistory();
    if (this.ended) return;
    this.verdict.replaceChildren(verdict(this.run.id, diagnosis, (finding) => this.#showFinding(finding), lossHistory));
    const bands = diagnosis.findings.filter((finding) => finding.severity !== "info").map((finding) => ({
      first: finding.first_step, last: finding.ongoing ? Infinity : finding.last_step, severity: finding.severity, code: finding.code }));
    this.loss?.set({ bands: bands.slice(0, 12) });
  }

  /** How the loss went, for a run of which there is nothing else to tell. */
  async #lossHistory() {
    const { run } = this;
    if (this.diagnosis.findings.some((finding) => finding.severity !== "info") || !run.scalars.includes("loss") || !run.steps.recorded) return null;
    const { first, last } = run.steps, near = 50; // steps: at the ends every number by itself
    const told = await Promise.all([[first, last], [first, first + near], [Math.max(first, last - near), last]].map(async ([from, to]) => {
      const line = await getJson("scalar", { run: run.id, name: "loss", first: from, last: to, columns: 2048 }).catch(() => ({ steps: [] }));
      return line.steps.map((at, place) => ({ at, value: line.mean[place], least: line.minimum[place] })).filter(({ value }) => value !== null);
    }));
    if (!told.every((points) => points.length)) return null;
    const [all, [begin], end] = told, best = [...all, ...end].reduce((one, other) => (other.least <= one.least ? other : one));
    return { first: begin.value, last: end.at(-1).value, least: best.least, at: best.at };
  }

  get quantity() { return this.run.quantities.find((one) => one.name === this.state.quantity); }

  /** A report has one statistic of steps that share a cell; where they do not, it can tell all. */
  get statistics() { return this.quantity?.finest ? STATISTICS.slice(0, 1) : STATISTICS; }

  get layers() { return this.quantity?.modules ? this.run.layers.modules : this.run.layers.parameters; }

  get depth() { return this.state.depth ?? usualDepth(this.layers); }

  /** Take over new choices, and draw what follows from them. */
  async change(changes, { first = false } = {}) {
    Object.assign(this.state, changes);
    if (!this.statistics.includes(this.state.statistic)) [this.state.statistic] = this.statistics;
    const { quantity, statistic, scheme, filter, closed } = this.state;
    const turn = this.turn = (this.turn ?? 0) + 1; // while one waits, another may be made: the last one counts
    const shown = this.scaledFor !== quantity;
    if (shown) {
      const scale = await getJson("scale", { run: this.run.id, quantity });
      if (turn !== this.turn) return;
      Object.assign(this, { scale, scaledFor: quantity, usual: null });
    }
    const relative = this.state.relative && this.scale.kind === "logarithmic";
    if (relative && !this.usual) {
      const usual = await getJson("usual", { run: this.run.id, quantity });
      if (turn !== this.turn) return;
      this.usual = usual;
    }
    const colours = JSON.stringify([quantity, this.scale, scheme, relative]);
    if (this.colouredBy !== colours) {
      this.colouredBy = colours;
      this.colouring = new Colouring(this.colours, this.scale, scheme);
      if (relative) this.colouring.relateTo(this.usual, this.colours);
    }
    this.rows = new Rows(this.layers, { filter, depth: this.depth, closed });
    this.heatmap.show({ rows: this.rows, colouring: this.colouring, query: { quantity, statistic }, finest: this.quantity?.finest ?? 0 });
    if (first && this.wantedRows?.every(Number.isFinite)) this.heatmap.showRows(...this.wantedRows);
    legend(this.legend, this.colouring, this.quantity);
    this.readout.show(null);
    this.toolbar.update();
    if (first) return;
    this.#remember({ quantity, statistic, scheme: scheme === "Default" ? null : scheme, relative: this.state.relative ? "1" : null, filter, depth: this.state.depth, closed: [...closed].join(",") });
    if (shown) for (const id of [...this.charts.keys()]) { this.#removePin(id); this.#addPin(id); }
  }

  /** What stands along the steps. */
  async changeAxis(kind) {
    this.span.axis.kind = kind;
    this.#remember({ axis: kind === "step" ? null : kind });
    await this.#learnTimes();
    this.redraw();
  }

  async #learnTimes() {
    if (this.span.axis.kind !== "step") this.span.axis.know(await getJson("times", { run: this.run.id }).catch(() => ({ steps: [], times: [] })));
  }

  changeScalar(changes) {
    Object.assign(this.state, changes);
    const { scalar, logarithmic, smoothing } = this.state;
    this.loss.set({ title: scalar, logarithmic, smoothing });
    if ("scalar" in changes) this.loss.reload();
    this.#remember({ scalar, log: logarithmic ? "1" : null, smooth: smoothing || null });
  }

  #remember(changes) { address.update(changes); }

  #toggle(name) {
    const closed = new Set(this.state.closed);
    if (!closed.delete(name)) closed.add(name);
    this.change({ closed });
  }

  closeAll(closing) {
    this.change({ closed: new Set(closing ? this.rows.groups.map((group) => group.name) : []) });
  }

  #pin(id) {
    if (this.charts.has(id)) { this.unpin(id); return; }
    if (this.charts.size >= MOST_PINS) { notice(`${MOST_PINS} rows are pinned already: unpin one first`); return; }
    this.#addPin(id);
    notice("Pinned below the heatmap");
    this.#rememberPins();
  }

  unpin(id) {
    this.#removePin(id);
    this.#rememberPins();
  }

  #rememberPins() {
    const pins = [...this.charts.keys()];
    this.#remember({ pins: pins.join(","), spread: pins.filter((id) => this.state.spread.has(id)).join(",") || null });
  }

  #removePin(id) {
    this.charts.get(id)?.end();
    this.charts.delete(id);
  }

  #addPin(id) {
    const layer = this.layers.find((one) => one.id === id);
    if (!layer) return;
    const { quantity } = this.state, { stream, finest = 0 } = this.quantity ?? {};
    const parts = SPREAD.filter(([part]) => this.run.quantities.some((one) => one.name === `${stream}_${part}`));
    const canSpread = parts.length >= 3 || this.run.distributions.includes(stream), spread = canSpread && this.state.spread.has(id); // a report may lack some
    const drawn = spread ? parts.map(([part]) => `${stream}_${part}`) : [quantity];
    const sources = drawn.map((name) => (first, last, columns, signal) => getJson("line", { run: this.run.id, quantity: name, layer: id, first, last, columns }, signal));
    const what = spread ? [`|${stream}|`, parts.map(([, name]) => name).join(", ")].filter(Boolean).join(": ") : quantity.replaceAll("_", " ");
    const title = finest && drawn.length ? `${what}, the largest of every ${2 ** finest} steps` : what;
    const swap = () => {
      if (!this.state.spread.delete(id)) this.state.spread.add(id);
      this.#removePin(id);
      this.#addPin(id);
      this.#rememberPins();
    };
    const chart = new Chart(this.span, sources, {
      title: `${layer.path} ${title}`, label: element("span", {}, named(layer.path), element("span", { class: "quiet" }, ` ${title}`)),
      names: spread ? parts.map(([, name]) => name) : [""], inks: spread ? parts.map(([, , ink]) => ink) : undefined,
      between: spread ? ["abs_p05", "abs_p95"].map((edge) => parts.findIndex(([part]) => part === edge)) : null,
      logarithmic: spread || this.scale.kind === "logarithmic",
      density: spread ? (first, last, columns, signal) => getJson("density", { run: this.run.id, stream, layer: id, first, last, columns }, signal).catch(() => null) : null,
      tools: [canSpread ? element("button", { type: "button", class: "quiet", onclick: swap }, spread ? "Curve" : "Distribution") : null,
        element("button", { type: "button", class: "quiet", onclick: () => this.unpin(id) }, "Unpin")],
    });
    chart.node.classList.toggle("tall", spread);
    this.charts.set(id, chart);
    this.pins.append(chart.node);
  }

  #showFinding(finding) {
    const before = Math.max(20, 0.25 * (finding.last_step - finding.first_step));
    this.span.show(finding.first_step - before, finding.last_step + before / 2);
    const names = new Set(finding.layers), places = this.rows.rows.map((row, place) => (row.layer && names.has(row.layer.path) ? place : -1)).filter((place) => place >= 0);
    if (!places.length) return;
    const [low, high] = [Math.min(...places), Math.max(...places)], room = Math.max(6, high - low + 5);
    this.heatmap.showRows((low + high + 1 - room) / 2, room);
  }

  async #grow(progress) {
    const { run } = this, grown = progress.sequence !== run.sequence, news = progress.journal !== run.journal || progress.status !== run.status;
    const changed = progress.layer_count !== run.layer_count || (!this.heatmap && progress.steps.recorded > 0);
    Object.assign(run, progress);
    this.#badge();
    if (changed) { dispatchEvent(new HashChangeEvent("hashchange")); return; } // another model than the page was made for
    if (this.span.paused || (!grown && !news)) return;
    if (news || (grown && Date.now() - (this.judged ?? 0) > JUDGE_AGAIN)) { this.judged = Date.now(); this.#judge(); }
    const told = this.verdict.querySelector(".extent");
    if (told) told.textContent = extent(run.steps);
    if (!grown || !this.heatmap) return;
    this.heatmap.tiles.grown(run.steps.last);
    this.#learnTimes();
    this.span.grow(extentOf(run.steps));
    this.loss?.reload();
    for (const chart of this.charts.values()) chart.reload();
    if (this.heatmap.finest !== (this.quantity?.finest ?? 0)) this.change({});
    this.#rescale();
  }

  /** A run that grows may leave its scale: look now and then. */
  async #rescale() {
    if (Date.now() - (this.scaled ?? 0) < 5000) return;
    this.scaled = Date.now();
    const scale = await getJson("scale", { run: this.run.id, quantity: this.state.quantity }).catch(() => this.scale);
    if (this.ended || JSON.stringify(scale) === JSON.stringify(this.scale)) return;
    this.scale = scale;
    this.change({});
  }

  pause() {
    this.span.paused = !this.span.paused;
    notice(this.span.paused ? "Paused: the run goes on, the page waits" : "Following again");
    this.run.sequence = null; // what came in between is news
    this.#badge();
  }

  get drawings() { return [this.heatmap, this.loss, ...this.charts.values()].filter(Boolean); }

  redraw() { for (const drawing of this.drawings) drawing.draw(); }

  /** Bring steps into sight, given as in the address of this page. */
  showSteps({ from, to }) { if (Number(to) > Number(from)) this.span.show(Number(from), Number(to)); }

  focusFilter() { this.toolbar?.filter.focus(); }

  #badge(trouble = null) {
    const { run } = this;
    const words = trouble ? element("span", { class: "problem" }, trouble) : status(run.status);
    const pause = run.status === "running" ? element("button", { type: "button", class: "quiet", onclick: () => this.pause() }, this.span.paused ? "Go on" : "Pause") : null;
    this.onDetails({ name: run.name, badge: element("span", {}, words, element("span", { class: "reached" }, run.steps.recorded ? ` · step ${step(run.steps.last)} ` : " "), pause) });
  }
}

/** At least a step wide, so that there is something to draw. */
function extentOf({ first, last }) {
  return { first: first ?? 0, last: (last ?? 0) + 1 };
}
