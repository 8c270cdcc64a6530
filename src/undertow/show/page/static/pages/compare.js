// Runs side by side: their curves over the same steps, and what they were started with.

import * as address from "../address.js";
import { Chart } from "../chart.js";
import { element, named, select } from "../dom.js";
import { short, step } from "../numbers.js";
import { getJson } from "../server.js";
import { Span } from "../span.js";
import { health, status, where } from "../words.js";

const MOST = 6;

export async function open(query) {
  const ids = (query.runs ?? "").split(",").filter(Boolean).map(decodeURIComponent).slice(0, MOST);
  const runs = await Promise.all(ids.map((run) => getJson("run", { run })));
  const verdicts = await Promise.all(ids.map((run) => getJson("diagnosis", { run })));
  return new ComparePage(runs, verdicts, query);
}

class ComparePage {
  constructor(runs, verdicts, query) {
    this.runs = runs;
    const common = (runs[0]?.scalars ?? []).filter((name) => runs.every((run) => run.scalars.includes(name)));
    const steps = runs.flatMap(({ steps }) => (steps.recorded ? [steps.first, steps.last + 1] : []));
    this.span = new Span(steps.length ? { first: Math.min(...steps), last: Math.max(...steps) } : { first: 0, last: 1 });
    this.scalar = common.includes(query.scalar) ? query.scalar : common.includes("loss") ? "loss" : common[0];
    this.look = { logarithmic: query.log === "1", smoothing: Number(query.smooth ?? 0) };
    if (Number(query.to) > Number(query.from)) this.span.show(Number(query.from), Number(query.to));
    this.span.onChange(() => address.update(this.span.whole ? { from: null, to: null } : { from: this.span.first.toFixed(1), to: this.span.last.toFixed(1) }));
    this.place = element("div");
    this.divergences = element("ul", { class: "issues" });
    this.node = element("section", { class: "page wide compare" }, element("header", {}, element("h1", {}, "Compare")),
      runs.length < 2 ? element("p", {}, "Tick two runs or more in the ", element("a", { href: "#/runs" }, "list of runs"), ".") : [this.#table(verdicts),
        common.length ? this.#curves(common) : element("p", { class: "quiet" }, "These runs have no curve in common."), this.place, this.divergences, this.#differences()]);
    for (const other of runs.slice(1)) this.#part(runs[0], other);
    if (this.scalar && runs.length > 1) this.#chart();
  }

  #swatch(number) {
    const line = element("span", { class: "swatch", "aria-hidden": "true" });
    line.style.background = `var(--run-${number + 1})`;
    return line;
  }

  #table(verdicts) {
    const titles = ["run", "health", "status", "steps", "first finding"];
    return element("table", { class: "data" }, element("thead", {}, element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, this.runs.map((run, number) => {
        const first = verdicts[number].findings.find((finding) => finding.severity !== "info");
        const alike = this.runs.filter((other) => other.name === run.name).length > 1;
        return element("tr", {}, element("td", {}, this.#swatch(number), element("a", { href: address.link("run", { run: run.id }) }, named(run.name)), alike ? element("span", { class: "quiet small" }, " ", named(run.id)) : null), element("td", {}, health(verdicts[number].health)),
          element("td", {}, status(run.status)), element("td", {}, step(run.steps.recorded)),
          element("td", {}, first ? [`${first.code} ${first.name}`, element("span", { class: "quiet" }, ` since step ${step(first.first_step)}`)] : "–"));
      })));
  }

  #see(changes) {
    Object.assign(this.look, changes);
    this.chart.set(changes);
    address.update({ log: this.look.logarithmic ? "1" : null, smooth: this.look.smoothing || null });
  }

  #curves(common) {
    const log = element("input", { type: "checkbox", checked: this.look.logarithmic, onchange: (event) => this.#see({ logarithmic: event.target.checked }) });
    const smooth = element("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: String(this.look.smoothing), "aria-label": "Smoothing", oninput: (event) => this.#see({ smoothing: Number(event.target.value) }) });
    return element("div", { class: "row" }, select("curve", common.map((name) => [name, name.slice(0, 80)]), this.scalar, (name) => { this.scalar = name; address.updateNow({ scalar: name }); this.#chart(); }),
      element("label", { class: "field" }, log, element("span", {}, "log")), element("label", { class: "field" }, element("span", {}, "smooth"), smooth));
  }

  #chart() {
    this.chart?.end();
    const sources = this.runs.map((run) => (first, last, columns, signal) => getJson("scalar", { run: run.id, name: this.scalar, first, last, columns }, signal));
    this.chart = new Chart(this.span, sources, { ...this.look, title: this.scalar, names: this.runs.map((run) => run.name), inks: this.runs.map((_, number) => `--run-${number + 1}`), axis: true });
    this.place.replaceChildren(this.chart.node);
  }

  /** The first step at which their gradients differ. */
  async #part(run, other) {
    const line = element("li", { class: "quiet" }, "Looking for where they diverge …");
    this.divergences.append(line);
    const found = await getJson("divergence", { run: run.id, other: other.id }).catch((error) => ({ reason: error.message }));
    const names = [named(run.name), " and ", named(other.name)];
    line.className = "";
    if (found.reason) line.replaceChildren(...names, ` cannot be compared: ${found.reason}.`);
    else if (found.step === null) line.replaceChildren(...names, ` have equal gradient norms at all ${step(found.common_steps)} common steps, in ${step(found.common_layers)} layers.`);
    else line.replaceChildren(...names, " diverge at step ", element("strong", {}, step(found.step)), ": gradient norms differ in ", ...where(found.layers), ".");
  }

  /** Only what is not the same everywhere. */
  #differences() {
    const facts = this.runs.map((run) => flattened({ ...run.facts.settings, name: null, run_dir: null, directory: null, optimizer: run.facts.optimizers, torch: run.facts.torch, device: run.facts.device, command: run.facts.command.join(" "), layers: run.layers.parameters.length }));
    const names = [...new Set(facts.flatMap((one) => [...one.keys()]))].filter((name) => new Set(facts.map((one) => one.get(name) ?? "")).size > 1);
    if (!names.length) return element("p", { class: "quiet" }, "Their configurations are equal: same optimizers, settings, software and number of layers.");
    return element("table", { class: "data" }, element("caption", {}, "What differs in their configuration"),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "setting"), this.runs.map((run, number) => element("th", { scope: "col" }, this.#swatch(number), named(run.name))))),
      element("tbody", {}, names.map((name) => element("tr", {}, element("th", { scope: "row" }, named(name)), facts.map((one) => element("td", {}, named(one.get(name) ?? "–")))))));
  }

  end() { this.chart?.end(); }
  redraw() { this.chart?.draw(); }
}

/** Nested data as lines of text by path. */
function flattened(data, path = "", found = new Map()) {
  if (data !== null && typeof data === "object") for (const [key, value] of Object.entries(data)) flattened(value, path ? `${path}.${key}` : key, found);
  else if (path) found.set(path, typeof data === "number" ? short(data, 6) : String(data ?? "–"));
  return found;
}
