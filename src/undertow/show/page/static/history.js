// How one weight went over the run: its size, how far it came, which way it points, and the spread of its values.

import * as address from "./address.js";
import { Chart } from "./chart.js";
import { button, element, named } from "./dom.js";
import { getJson } from "./server.js";
import { Span } from "./span.js";

const CURVES = [
  { title: "norm", parts: ["weight_norm"] },
  { title: "drift from the start, relative to the initial norm", parts: ["weight_drift"], field: "relative" },
  { title: "cosine to the start", parts: ["weight_cosine_to_start"], field: "cosine" },
  { title: "absolute values: median, 5 to 95 %, largest", parts: ["weight_abs_p05", "weight_abs_p50", "weight_abs_p95", "weight_max_abs"],
    names: ["5 %", "median", "95 %", "largest"], inks: ["--quiet", "--text", "--quiet", "--run-2"], between: [0, 2], logarithmic: true, spread: "weight" },
];

export class History {
  constructor(run) {
    Object.assign(this, { run, charts: [], path: null });
    this.node = element("section", { class: "history", "aria-label": "History of a tensor", hidden: true });
  }

  get drawings() { return this.charts; }

  /** A tensor of the report; the same one again closes it. */
  show({ path, drift }) {
    this.end();
    this.path = path === this.path ? null : path;
    this.node.hidden = this.path === null;
    const layer = this.run.layers.parameters.find((one) => one.path === path);
    if (this.path === null || !layer) return;
    const known = new Set(this.run.quantities.map((one) => one.name)), { first, last } = this.run.steps, span = new Span({ first: first ?? 0, last: (last ?? 0) + 1 });
    const unknown = CURVES.filter(({ field }) => drift?.missing[field]);
    this.charts = CURVES.filter((one) => !unknown.includes(one) && one.parts.every((part) => known.has(part))).map(({ parts, title, spread, ...options }) => new Chart(span,
      parts.map((quantity) => (from, to, columns, signal) => getJson("line", { run: this.run.id, quantity, layer: layer.id, first: from, last: to, columns }, signal)),
      { title: `${path} ${title}`, label: title, axis: true, ...options, density: spread ? (from, to, columns, signal) => getJson("density", { run: this.run.id, stream: spread, layer: layer.id, first: from, last: to, columns }, signal).catch(() => null) : null }));
    this.node.replaceChildren(element("div", { class: "row" }, element("h2", {}, named(path)), button("Close", () => { this.show({ path }); address.update({ tensor: null }); }, { class: "quiet" })),
      ...unknown.map(({ title, field }) => element("p", { class: "quiet small" }, `${title}: ${drift.missing[field]}`)),
      ...(this.charts.length ? this.charts.map((chart) => chart.node) : [element("p", { class: "quiet" }, "Its history is not part of this page.")]));
    this.node.scrollIntoView({ block: "nearest" });
  }

  end() {
    this.charts.forEach((chart) => chart.end());
    this.charts = [];
  }
}
