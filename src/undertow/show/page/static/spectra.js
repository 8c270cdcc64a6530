// Spectra of the weight matrices of a checkpoint, as `undertow weights` found them.

import { element, named, select } from "./dom.js";
import { count, short } from "./numbers.js";
import { sortable } from "./sortable.js";

const COLUMNS = [
  ["tensor", (one) => one.path, (one, path) => named(path)],
  ["as a matrix", (one) => matrix(one.shape).join(" × ")],
  ["spectral norm", (one) => one.spectral_norm, null, "the largest singular value"],
  ["stable rank", (one) => one.stable_rank, null, "squared norm over squared spectral norm: how many directions carry the matrix"],
  ["of full rank", (one) => one.stable_rank / one.values_total, (one, share) => meter(share), "stable rank over the number of singular values"],
  ["condition", (one) => one.condition, null, "largest over smallest singular value"],
  ["tail exponent", (one) => one.tail_exponent, null, "α of a power law fitted to the largest eigenvalues of WᵀW"],
  ["fitted to", (one) => one.tail_values, (one, values) => (values === null ? "–" : `${values} of ${one.values_total}`), "how many of the values lie in the tail"],
  ["fit distance", (one) => one.tail_distance, null, "Kolmogorov–Smirnov distance of the fit: small is good"],
  ["method", (one) => one.method],
];

function matrix(shape) { return [shape[0], shape.slice(1).reduce((product, size) => product * size, 1)]; }

function meter(share) {
  const bar = element("span", { class: "fill" });
  bar.style.width = `${Math.round(100 * Math.min(1, share))}%`;
  return [element("span", { class: "meter", "aria-hidden": "true" }, bar), ` ${Math.round(100 * share)} %`];
}

/** `why` says why the run itself has none. */
export function spectra(run, checkpoints, why) {
  const place = element("div"), known = checkpoints.filter((one) => one.tensors.length);
  const show = (file) => {
    const chosen = known.find((one) => one.file === file);
    place.replaceChildren(element("p", { class: "quiet small" }, `${count(chosen.tensors.length, "matrix").replace("matrixs", "matrices")} of `, named(chosen.source), ", from ", named(chosen.file), "."),
      sortable(COLUMNS, chosen.tensors, { label: "Spectra", file: `${run.name}-spectra.csv` }).node);
  };
  if (known.length) show(known[0].file);
  const troubles = checkpoints.filter((one) => one.problem).map((one) => element("p", { class: "problem small" }, named(one.file), ` cannot be shown: ${one.problem}`));
  return element("section", { class: "spectra" }, element("div", { class: "row" }, element("h2", {}, "Spectra"),
    known.length > 1 ? select("checkpoint", known.map((one) => [one.file, one.source]), known[0].file, show) : null), troubles,
  known.length ? place : element("div", {}, element("p", { class: "quiet" }, `None yet: ${why ?? "no checkpoint of this run was analysed"}. To see singular values, ranks and tails of a checkpoint here:`),
    element("pre", { class: "line" }, "undertow weights CHECKPOINT --json > RUN_FOLDER/weights.json")));
}
