// Everything that was found: when, where, how it is known, what to do, and what it means in general.

import * as address from "../address.js";
import { Chart } from "../chart.js";
import { copyButton, element, named } from "../dom.js";
import { short, step } from "../numbers.js";
import { follow, getJson } from "../server.js";
import { Span } from "../span.js";
import { evidence, severity, status, when, where } from "../words.js";

const MOST_CHARTS = 3;

export async function open(query, onDetails) {
  const [run, diagnosis] = await Promise.all([getJson("run", { run: query.run }), getJson("diagnosis", { run: query.run })]);
  const page = new FindingsPage(run, diagnosis, query);
  onDetails({ name: run.name, badge: status(run.status) });
  return page;
}

class FindingsPage {
  constructor(run, diagnosis, query) {
    Object.assign(this, { run, diagnosis, charts: [] });
    this.list = element("nav", { class: "list", "aria-label": "Findings" });
    this.place = element("article", { class: "finding", "aria-live": "polite" });
    this.lanes = element("div", { class: "timeline", role: "img", "aria-label": "When each finding held" });
    this.title = element("h1", {});
    this.node = element("section", { class: "page" }, element("header", { class: "row" }, this.title), this.lanes,
      element("div", { class: "findings" }, this.list, this.place));
    this.chosen = Number(query.finding ?? Math.max(0, diagnosis.findings.findIndex((finding) => finding.code === query.code)));
    this.#draw();
  }

  begin() {
    let seen = this.run.journal;
    this.stop = follow(this.run.id, async ({ journal }) => {
      if (journal === seen) return;
      seen = journal;
      this.diagnosis = await getJson("diagnosis", { run: this.run.id }).catch(() => this.diagnosis);
      this.#drawList();
    }, () => {});
  }

  end() {
    this.stop?.();
    this.charts.forEach((chart) => chart.end());
  }

  redraw() { this.charts.forEach((chart) => chart.draw()); }

  #draw() {
    this.#drawList();
    const finding = this.diagnosis.findings[this.chosen];
    if (finding) this.#drawFinding(finding);
    else this.place.replaceChildren(element("p", {}, this.diagnosis.story));
  }

  #drawList() {
    const { findings } = this.diagnosis;
    this.title.textContent = findings.length === 1 ? "1 finding" : `${findings.length} findings`;
    this.list.replaceChildren(...findings.map((finding, place) => element("a", {
      href: address.link("findings", { run: this.run.id, finding: place }), "aria-current": place === this.chosen ? "true" : null,
      onclick: (event) => { event.preventDefault(); this.#choose(place); } },
    element("span", {}, severity(finding.severity), ` ${finding.code}`), element("span", {}, finding.name.replaceAll("-", " ")),
    element("span", { class: "quiet small" }, when(finding), finding.follows_from ? ` · follows from ${finding.follows_from}` : ""))));
    this.#drawLanes(findings);
  }

  #choose(place) {
    this.chosen = place;
    address.updateNow({ finding: place, code: null });
    this.#draw();
  }

  #drawLanes(findings) {
    const first = this.run.steps.first ?? 0, width = Math.max(1, (this.run.steps.last ?? 0) + 1 - first);
    this.lanes.replaceChildren(...findings.slice(0, 16).map((finding) => {
      const bar = element("div", { class: `bar ${finding.severity}`, title: `${finding.code} ${when(finding)}` });
      bar.style.left = `${(100 * (finding.first_step - first)) / width}%`;
      bar.style.width = `${(100 * (finding.last_step + 1 - finding.first_step)) / width}%`;
      return element("div", { class: "lane" }, element("span", { class: finding.severity }, finding.code), element("div", { class: "track" }, bar));
    }));
  }

  async #drawFinding(finding) {
    this.charts.forEach((chart) => chart.end());
    this.charts = [];
    const meaning = element("details", {}, element("summary", {}, `What ${finding.code} means in general`));
    meaning.addEventListener("toggle", () => this.#explain(finding.code, meaning), { once: true });
    const charts = element("div", { class: "charts" });
    this.place.replaceChildren(
      element("h2", {}, severity(finding.severity), ` ${finding.code} ${finding.name.replaceAll("-", " ")}`),
      element("p", {}, finding.summary),
      section("When", element("p", {}, `${when(finding)}; ${Math.round(100 * finding.confidence)} % sure`, finding.follows_from ? `; follows from ${finding.follows_from}` : "")),
      section("Where", element("p", {}, where(finding.layers, 24)), this.#showLink(finding)),
      section("How it is known", element("ul", {}, finding.evidence.map((one) => element("li", {}, seen(one)))), charts),
      finding.remedies.length ? section("What to do", element("div", { class: "remedies" }, finding.remedies.map(remedy))) : null, meaning);
    this.#drawCharts(finding, charts);
  }

  #showLink(finding) {
    const margin = Math.max(20, 0.25 * (finding.last_step - finding.first_step));
    const from = Math.max(0, Math.floor(finding.first_step - margin)), to = Math.ceil(finding.last_step + margin);
    return element("p", {}, element("a", { href: address.link("run", { run: this.run.id, from, to }) }, "Show these steps in the heatmap"));
  }

  #drawCharts(finding, place) {
    const known = new Set(this.run.quantities.filter((one) => !["state", "flag", "index"].includes(one.unit)).map((one) => one.name));
    const layers = new Map([...this.run.layers.parameters, ...this.run.layers.modules].map((layer) => [layer.path, layer]));
    const curves = new Map();
    for (const one of finding.evidence) {
      const layer = layers.get(one.layer);
      if (known.has(one.quantity) && layer) curves.set(`${one.quantity} ${layer.path}`, { label: [named(layer.path), ` ${one.quantity.replaceAll("_", " ")}`],
        get: (first, last, columns, signal) => getJson("line", { run: this.run.id, quantity: one.quantity, layer: layer.id, first, last, columns }, signal), log: one.quantity.endsWith("norm") || one.quantity.endsWith("ratio") });
      else if (this.run.scalars.includes(one.quantity)) curves.set(one.quantity, { label: [one.quantity], log: false,
        get: (first, last, columns, signal) => getJson("scalar", { run: this.run.id, name: one.quantity, first, last, columns }, signal) });
    }
    const { first, last } = this.run.steps, span = new Span({ first: first ?? 0, last: (last ?? 0) + 1 });
    const bands = [{ first: finding.first_step, last: finding.last_step, severity: finding.severity }];
    for (const [title, { label, get, log }] of [...curves].slice(0, MOST_CHARTS)) {
      const chart = new Chart(span, get, { title, label: element("span", {}, label), logarithmic: log, bands });
      this.charts.push(chart);
      place.append(chart.node);
    }
  }

  async #explain(code, place) {
    const page = await getJson("explain", { code }).catch((error) => ({ summary: error.message, sections: [] }));
    place.append(element("p", {}, page.summary), ...page.sections.map(([title, text]) => section(title, element("p", {}, text))));
  }
}

function section(title, ...content) {
  return element("section", {}, element("h3", {}, title), ...content);
}

function seen(one) {
  const { text, layer, quantity, value, expected } = evidence(one);
  const numbers = quantity && value !== null ? `: ${quantity.replaceAll("_", " ")} ${short(value, 4)}${expected === null ? "" : `, expected ${short(expected, 4)}`}` : "";
  return [text, layer ? [" (", named(layer), numbers, ")"] : numbers].flat();
}

function remedy(one) {
  return element("div", { class: "remedy" }, element("p", {}, element("strong", {}, one.what)),
    one.how ? element("div", { class: "code" }, element("pre", { tabindex: "0" }, one.how), copyButton(one.how)) : null,
    element("p", { class: "small quiet" }, `Risk: ${one.risk}`, one.when_not ? ` Not when: ${one.when_not}` : ""),
    element("p", { class: "small quiet" }, one.measured ?? "Not tried on this run."));
}
