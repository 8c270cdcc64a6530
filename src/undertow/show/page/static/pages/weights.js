// The weights when they were last measured: what is wrong with them, how large they are, how far they came; and their spectra.

import * as address from "../address.js";
import { element, named } from "../dom.js";
import { History } from "../history.js";
import { count, short } from "../numbers.js";
import { followSlowly, getJson } from "../server.js";
import { sortable } from "../sortable.js";
import { spectra } from "../spectra.js";
import { health, severity, status } from "../words.js";

const MOMENTS = [
  ["kind", (one) => one.kind], ["shape", (one) => one.shape.join(" × ")], ["norm", (one) => one.moments.norm], ["std", (one) => one.moments.std],
  ["smallest", (one) => one.moments.minimum], ["largest", (one) => one.moments.maximum], ["kurtosis", (one) => one.moments.kurtosis, null, "above that of a normal distribution"],
  ["zeros", (one) => (one.moments.count ? one.moments.zero_count / one.moments.count : null), (one, share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`)],
  ["not finite", (one) => one.moments.nan_count + one.moments.infinite_count + one.moments.undivided_count],
  ["moved", (one) => one.drift?.relative ?? null, null, "since the start, over its norm then"], ["cosine to start", (one) => one.drift?.cosine ?? null],
];

export async function open(query, onDetails, { again = () => {} } = {}) {
  const [run, report] = await Promise.all([getJson("run", { run: query.run }), getJson("weights", { run: query.run })]);
  const tell = (state, trouble = "") => onDetails({ name: run.name, badge: trouble || status(state) });
  tell(run.status);
  const drift = new Map((report.drift?.tensors ?? []).map((one) => [one.path, one]));
  const tensors = report.tensors.map((one) => ({ ...one, drift: drift.get(one.path) }));
  const history = new History(run);
  const path = ["tensor", (one) => one.path, (one, name) => element("button", { type: "button", class: "name", title: "Its history", onclick: () => { history.show(one); address.update({ tensor: history.path }); } }, named(name))];
  const table = sortable([path, ...MOMENTS], tensors, { label: "Tensors", file: `${run.name}-weights.csv`, filter: query.tensors, sort: query.sort, onChange: address.update });
  const issues = report.issues.map((issue) => element("li", {}, severity(issue.severity), ` ${issue.code} ${issue.name}: ${issue.summary}`));
  const moved = typeof report.drift?.relative === "number" ? ` Since ${report.drift.against} they moved by ${short(report.drift.relative)} of their norm as a whole, the median tensor by ${short(report.drift.median_relative)}.` : "";
  const [as, ...notes] = report.notes;
  const node = element("section", { class: "page wide" },
    element("header", {}, element("h1", {}, "Weights ", health(report.health)),
      element("p", { class: "quiet" }, `${count(report.tensors.length, "tensor")}, ${count(report.parameter_count, "parameter")}${as ? `; ${as}` : ""}.${moved}`)),
    issues.length ? element("ul", { class: "issues" }, issues) : "", notes.map((note) => element("p", { class: "quiet small" }, note)), history.node,
    tensors.length ? [element("p", { class: "quiet small no-print" }, "Press a name for its history."), table.node] : element("p", {}, "This run has no measurements of weights."),
    spectra(run, report.checkpoints, tensors[0]?.missing.spectrum?.split(":")[0]));
  const chosen = tensors.find((one) => one.path === query.tensor);
  if (chosen) history.show(chosen);
  let stop = null;
  return { node, focusFilter: () => table.filter.focus(), begin: () => { stop = followSlowly(run, tell, () => false, again); }, end: () => { stop?.(); history.end(); }, redraw: () => history.charts.forEach((chart) => chart.draw()), get drawings() { return history.drawings; } };
}
