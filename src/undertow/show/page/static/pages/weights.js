// The weights when they were last measured: what is wrong with them, how large they are, how far they came.

import { button, csv, download, element, named } from "../dom.js";
import { History } from "../history.js";
import { count, short } from "../numbers.js";
import { matcher } from "../rows.js";
import { getJson } from "../server.js";
import { health, severity, status } from "../words.js";

const MOST_ROWS = 1000;
const SPECTRUM = [["spectral norm", (one) => one.spectrum?.spectral_norm ?? null], ["stable rank", (one) => one.spectrum?.stable_rank ?? null], ["condition", (one) => one.spectrum?.condition ?? null]];
const USUAL = [
  ["tensor", (one) => one.path], ["kind", (one) => one.kind], ["shape", (one) => one.shape.join(" × ")], ["norm", (one) => one.moments.norm],
  ["std", (one) => one.moments.std], ["smallest", (one) => one.moments.minimum], ["largest", (one) => one.moments.maximum],
  ["kurtosis", (one) => one.moments.kurtosis], ["zeros", (one) => (one.moments.count ? one.moments.zero_count / one.moments.count : null)],
  ["not finite", (one) => one.moments.nan_count + one.moments.infinite_count + one.moments.undivided_count], ["moved", (one) => one.drift?.relative ?? null], ["cosine to start", (one) => one.drift?.cosine ?? null],
];

export async function open(query, onDetails) {
  const [run, report] = await Promise.all([getJson("run", { run: query.run }), getJson("weights", { run: query.run })]);
  onDetails({ name: run.name, badge: status(run.status) });
  const drift = new Map((report.drift?.tensors ?? []).map((one) => [one.path, one]));
  const tensors = report.tensors.map((one) => ({ ...one, drift: drift.get(one.path) }));
  const spectra = tensors.some((one) => one.spectrum), COLUMNS = spectra ? [...USUAL, ...SPECTRUM] : USUAL;
  const whyNoSpectra = spectra ? null : tensors[0]?.missing.spectrum;
  const history = new History(run);
  let order = [0, 0]; // column, direction; 0: as in the model
  const body = element("tbody"), head = element("tr");
  const filter = element("input", { type: "search", placeholder: "Filter tensors (/)", "aria-label": "Filter tensors", oninput: draw });
  const left = element("p", { class: "quiet small" });

  function shown() {
    const matches = matcher(filter.value), found = tensors.filter((one) => matches(one.path)), value = COLUMNS[order[0]][1];
    if (!order[1]) return found;
    return found.sort((one, other) => {
      const [first, second] = [value(one), value(other)];
      if (first === null || second === null) return (first === null) - (second === null);
      return order[1] * (typeof first === "string" ? first.localeCompare(second) : first - second);
    });
  }

  function draw() {
    head.replaceChildren(...COLUMNS.map(([title], place) => element("th", { scope: "col", class: place > 2 ? "number" : null, "aria-sort": order[0] === place && order[1] ? (order[1] > 0 ? "ascending" : "descending") : null },
      button(`${title}${order[0] === place && order[1] ? (order[1] > 0 ? " ↑" : " ↓") : ""}`, () => sort(place), { class: "quiet" }))));
    const rows = shown();
    body.replaceChildren(...rows.slice(0, MOST_ROWS).map((one) => element("tr", {}, COLUMNS.map(([title, value], place) => {
      const cell = value(one);
      if (place === 0) return element("td", {}, element("button", { type: "button", class: "name", title: "Its history", onclick: () => history.show(one) }, named(cell)));
      if (title === "zeros") return element("td", { class: "number" }, cell === null ? "–" : `${(100 * cell).toFixed(1)} %`);
      return element("td", { class: place > 2 ? "number" : null }, typeof cell === "number" ? short(cell) : cell ?? "–");
    }))));
    left.textContent = rows.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${rows.length.toLocaleString("en")} are shown: filter, or download them all.` : "";
  }

  function sort(place) {
    order = order[0] === place ? [place, order[1] === -1 ? 1 : order[1] === 1 ? 0 : -1] : [place, -1];
    draw();
  }

  draw();
  const issues = report.issues.map((issue) => element("li", {}, severity(issue.severity), ` ${issue.code} ${issue.name}: ${issue.summary}`));
  const moved = typeof report.drift?.relative === "number" ? `Since ${report.drift.against} the weights as a whole moved by ${short(report.drift.relative)} of their norm (median tensor ${short(report.drift.median_relative)}).` : "";
  const node = element("section", { class: "page wide" },
    element("header", {}, element("h1", {}, "Weights ", health(report.health)), element("p", { class: "quiet" }, `${count(report.tensors.length, "tensor")}, ${count(report.parameter_count, "parameter")}. ${moved}`)),
    issues.length ? element("ul", { class: "issues" }, issues) : "", [...report.notes, ...(whyNoSpectra ? [`spectra are not shown: ${whyNoSpectra}`] : [])].map((note) => element("p", { class: "quiet small" }, note)), history.node,
    element("div", { class: "row" }, filter, element("span", { class: "grow" }), button("CSV", () => download(`${run.name}-weights.csv`, csv(COLUMNS.map(([title]) => title), shown().map((one) => COLUMNS.map(([, value]) => value(one))))), { class: "quiet" })),
    tensors.length ? element("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Tensors" }, element("table", { class: "data" }, element("thead", {}, head), body)) : element("p", {}, "This run has no measurements of weights."), left);
  return { node, focusFilter: () => filter.focus(), end: () => history.end(), redraw: () => history.charts.forEach((chart) => chart.draw()), get drawings() { return history.drawings; } };
}
