// The choices above the heatmap and on the chart of a scalar.

import { KINDS } from "./axis.js";
import { decode, markOf } from "./colours.js";
import { button, csv, dialog, download, element, named, select, table } from "./dom.js";
import { count, short } from "./numbers.js";
import { savePicture } from "./saving.js";

const SCHEMES = [["Default", "Default"], ["ColorBlind", "Colour-blind"], ["HighContrast", "High contrast"], ["Monochrome", "Monochrome"]];
const STATISTICS = [["maximum", "largest"], ["mean", "mean"], ["minimum", "smallest"]];
const VIEWS = [["gradient_norm", "Gradients"], ["update_ratio", "Updates"], ["gradient_cosine", "Cosines"]];
const FIRST = ["gradient_norm", "update_ratio", "gradient_cosine", "weight_norm", "activation_std"];

export class Toolbar {
  constructor(page) {
    this.page = page;
    this.filter = element("input", { type: "search", placeholder: "*.attn.*  (/)", "aria-label": "Filter layers", value: page.state.filter,
      oninput: () => page.change({ filter: this.filter.value }) });
    this.count = element("span", { class: "quiet" });
    this.choices = element("div", { class: "row" });
    this.node = element("div", { class: "toolbar", role: "group", "aria-label": "Heatmap" }, this.choices, this.filter, this.count,
      element("span", { class: "grow" }),
      element("span", { class: "tools" }, button("Table", () => this.#table(), { class: "quiet" }), button("CSV", () => this.#csv(), { class: "quiet" }), button("PNG", () => this.#png(), { class: "quiet" })));
  }

  update() {
    const { page } = this, { state, rows } = page;
    const drawn = JSON.stringify([state.quantity, state.statistic, page.depth, state.scheme, state.relative, page.scale.kind, page.statistics, state.closed.size > 0]);
    this.count.textContent = rows.layerCount < page.layers.length ? `${rows.layerCount.toLocaleString("en")} of ${count(page.layers.length, "layer")}` : count(page.layers.length, "layer");
    if (drawn === this.drawn) return; // a list that is open stays so
    this.drawn = drawn;
    this.choices.replaceChildren(this.#views(), this.#quantities(),
      page.statistics.length > 1 ? select("over", STATISTICS.filter(([name]) => page.statistics.includes(name)), state.statistic, (statistic) => page.change({ statistic })) : "",
      select("groups", [["0", "none"], ["1", "1 name"], ["2", "2 names"], ["3", "3 names"]], String(page.depth), (depth) => page.change({ depth: Number(depth), closed: new Set() })),
      page.depth ? button(state.closed.size ? "Open all" : "Close all", () => page.closeAll(!state.closed.size), { class: "quiet" }) : "",
      page.scale.kind === "logarithmic" ? select("colour", [["", "value"], ["1", "change"]], state.relative ? "1" : "", (relative) => page.change({ relative: relative === "1" })) : "",
      select("palette", SCHEMES, state.scheme, (scheme) => page.change({ scheme })));
  }

  /** The three that most questions begin with. */
  #views() {
    const { page } = this, known = VIEWS.filter(([name]) => page.run.quantities.some((one) => one.name === name));
    return element("div", { class: "views", role: "group", "aria-label": "Views" }, known.map(([name, title]) =>
      button(title, () => page.change({ quantity: name }), { "aria-pressed": String(name === page.state.quantity), title: name.replaceAll("_", " ") })));
  }

  #quantities() {
    const { page } = this, known = page.run.quantities;
    const option = (one) => element("option", { value: one.name, selected: one.name === page.state.quantity, title: one.what }, one.name.replaceAll("_", " "));
    const streams = [...new Set(known.map((one) => one.stream))];
    const groups = [["most used", known.filter((one) => FIRST.includes(one.name))],
      ...streams.map((stream) => [stream, known.filter((one) => one.stream === stream && !FIRST.includes(one.name))])];
    return element("select", { "aria-label": "quantity", onchange: (event) => page.change({ quantity: event.target.value }) },
      groups.filter(([, ones]) => ones.length).map(([name, ones]) => element("optgroup", { label: name }, ones.map(option))));
  }

  static scalarField(page) {
    const field = element("select", { "aria-label": "Curve", onchange: (event) => page.changeScalar({ scalar: event.target.value }) },
      page.run.scalars.map((name) => element("option", { value: name, selected: name === page.state.scalar }, name.slice(0, 80))));
    return field;
  }

  static chartTools(page) {
    const log = element("input", { type: "checkbox", checked: page.state.logarithmic, onchange: (event) => page.changeScalar({ logarithmic: event.target.checked }) });
    const smooth = element("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: String(page.state.smoothing), "aria-label": "Smoothing",
      oninput: (event) => page.changeScalar({ smoothing: Number(event.target.value) }) });
    const axis = element("select", { "aria-label": "Axis", onchange: (event) => page.changeAxis(event.target.value) },
      KINDS.map(([kind, name]) => element("option", { value: kind, selected: kind === page.span.axis.kind }, name)));
    return [axis, element("label", { class: "field" }, log, element("span", {}, "log")), element("label", { class: "field" }, element("span", {}, "smooth"), smooth)];
  }

  #table() {
    const { page } = this, [, ...lines] = page.heatmap.inSight();
    const rows = lines.map(({ entry, codes }) => {
      const numbers = [...codes].filter((code) => markOf(code) === null).map(decode);
      const bad = codes.filter((code) => ["not finite", "+∞", "−∞"].includes(markOf(code))).length;
      const newest = codes.findLast((code) => markOf(code) !== "not sampled");
      return [named(entry.label), newest === undefined ? "not sampled" : markOf(newest) ?? short(decode(newest), 2),
        short(numbers.length ? numbers.reduce((one, other) => Math.min(one, other)) : null, 2), short(numbers.length ? numbers.reduce((one, other) => Math.max(one, other)) : null, 2), bad || ""];
    });
    dialog(`${page.state.quantity.replaceAll("_", " ")}: what is in sight`, table(["layer", "newest", "smallest", "largest", "not finite"], rows));
  }

  #csv() {
    const { page } = this, [steps, ...lines] = page.heatmap.inSight();
    download(`${page.run.name}-${page.state.quantity}.csv`, csv(["layer", ...steps], lines.map(({ entry, codes }) =>
      [entry.label, ...[...codes].map((code) => markOf(code) ?? Number(decode(code).toPrecision(3)))])));
  }

  #png() {
    const { page } = this, { heatmap, state, legend } = page, ends = legend.querySelector(".mark").textContent.trim().split(/\s+/);
    savePicture(`${page.run.name}-${state.quantity}.png`, heatmap.canvas, { ratio: heatmap.ratio, title: `${page.run.name.slice(0, 80)}: ${state.quantity.replaceAll("_", " ")}`,
      note: legend.querySelector(".quiet").textContent, scale: { canvas: legend.querySelector("canvas"), ends: [ends[0], ends.at(-1)] } });
  }
}
