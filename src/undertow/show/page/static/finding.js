// One finding: when, where, how it is known, what to do, and what it means in general.

import { link } from "./address.js";
import { Chart } from "./chart.js";
import { code, element, named } from "./dom.js";
import { short } from "./numbers.js";
import { getJson } from "./server.js";
import { Span } from "./span.js";
import { allLayers, evidence, place, severity, when } from "./words.js";

const MOST_CHARTS = 3;

export class FindingView {
  constructor(run, finding) {
    Object.assign(this, { run, finding, charts: [] });
    const meaning = element("details", {}, element("summary", {}, `What ${finding.code} means in general`));
    meaning.addEventListener("toggle", () => this.#explain(meaning), { once: true });
    const charts = element("div", { class: "charts" });
    this.node = element("article", { class: "finding" },
      element("h2", {}, severity(finding.severity), ` ${finding.code} ${finding.name.replaceAll("-", " ")}`),
      element("p", {}, finding.summary),
      section("When", element("p", {}, `${when(finding)}; ${Math.round(100 * finding.confidence)} % sure`, finding.follows_from ? `; follows from ${finding.follows_from}` : "")),
      section("Where", element("p", {}, place(finding)), allLayers(finding), this.#showLink()),
      finding.source?.length ? section("Line in your program", ...finding.source.map(line)) : null,
      section("How it is known", element("ul", {}, finding.evidence.map((one) => element("li", {}, seen(one)))), charts),
      finding.remedies.length ? section("What to do", element("div", { class: "remedies" }, finding.remedies.map(remedy))) : null, meaning);
    this.#drawCharts(charts);
  }

  end() { this.charts.forEach((chart) => chart.end()); }

  #showLink() {
    const { first_step: first, last_step: last } = this.finding, margin = Math.max(20, 0.25 * (last - first));
    const from = Math.max(0, Math.floor(first - margin)), to = Math.ceil(last + margin);
    return element("p", { class: "no-print" }, element("a", { href: link("run", { run: this.run.id, from, to }) }, "Show these steps in the heatmap"));
  }

  #drawCharts(place) {
    const { run, finding } = this;
    const known = new Set(run.quantities.filter((one) => !["state", "flag", "index"].includes(one.unit)).map((one) => one.name));
    const layers = new Map([...run.layers.parameters, ...run.layers.modules].map((layer) => [layer.path, layer]));
    const curves = new Map();
    for (const one of finding.evidence) {
      const layer = layers.get(one.layer);
      if (known.has(one.quantity) && layer) curves.set(`${one.quantity} ${layer.path}`, { label: [named(layer.path), ` ${one.quantity.replaceAll("_", " ")}`],
        get: (first, last, columns, signal) => getJson("line", { run: run.id, quantity: one.quantity, layer: layer.id, first, last, columns }, signal), log: one.quantity.endsWith("norm") || one.quantity.endsWith("ratio") });
      else if (run.scalars.includes(one.quantity)) curves.set(one.quantity, { label: [one.quantity], log: false,
        get: (first, last, columns, signal) => getJson("scalar", { run: run.id, name: one.quantity, first, last, columns }, signal) });
    }
    const { first, last } = run.steps, span = new Span({ first: first ?? 0, last: (last ?? 0) + 1 });
    const bands = [{ first: finding.first_step, last: finding.last_step, severity: finding.severity }];
    for (const [title, { label, get, log }] of [...curves].slice(0, MOST_CHARTS)) {
      const chart = new Chart(span, get, { title, label: element("span", {}, label), logarithmic: log, bands, axis: true });
      this.charts.push(chart);
      place.append(chart.node);
    }
  }

  async #explain(place) {
    const page = await getJson("explain", { code: this.finding.code }).catch((error) => ({ summary: error.message, sections: [] }));
    place.append(element("p", {}, page.summary), ...page.sections.map(([title, text]) => section(title, element("p", {}, text))));
  }
}

function section(title, ...content) {
  return element("section", {}, element("h3", {}, title), ...content);
}

function line(one) {
  const lines = [[one.line - 1, one.before], ...one.code.split("\n").map((text, offset) => [one.line + offset, text]), [one.end_line + 1, one.after]];
  const inside = one.function && one.function !== "<module>" ? ` in ${one.function}` : "";
  return element("div", {}, element("p", {}, element("strong", {}, `${one.file}:${one.line}`), `${inside} (${one.role}${one.note ? `: ${one.note}` : ""})`),
    one.code ? code(lines.filter(([, text]) => text.trim()).map(([number, text]) => `${number} | ${text}`).join("\n")) : null);
}

function seen(one) {
  const { text, layer, quantity, value, expected } = evidence(one);
  const numbers = quantity && value !== null ? `: ${quantity.replaceAll("_", " ")} ${short(value, 4)}${expected === null ? "" : `, expected ${short(expected, 4)}`}` : "";
  return [text, layer ? [" (", named(layer), numbers, ")"] : numbers].flat();
}

function remedy(one) {
  return element("div", { class: "remedy" }, element("p", {}, element("strong", {}, one.what)),
    one.how ? code(one.how) : null,
    element("p", { class: "small quiet" }, `Risk: ${one.risk}`, one.when_not ? ` Not when: ${one.when_not}` : ""),
    element("p", { class: "small quiet" }, one.measured ?? "Not tried on this run."));
}
