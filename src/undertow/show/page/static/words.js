// How bad something is: never told by colour alone.

import { element, named } from "./dom.js";
import { step } from "./numbers.js";

export const GLYPHS = { info: "·", mild: "○", moderate: "▲", severe: "■", critical: "✖" };
const MOST = 500; // names on a page
const HEALTH = { healthy: ["✔", "healthy"], minor: ["○", "minor"], problems: ["■", "problems"], critical: ["✖", "critical"] };

export function severity(level) {
  return element("span", { class: `severity ${level}` }, element("span", { "aria-hidden": "true" }, GLYPHS[level]), ` ${level}`);
}

/** `verdict`: the whole of it in words, where it is more than the health. */
export function health(value, verdict = null) {
  const [glyph, word] = HEALTH[value] ?? ["?", "no verdict"];
  return element("span", { class: `health ${value ?? "unknown"}` }, element("span", { "aria-hidden": "true" }, glyph), ` ${verdict ?? word}`);
}

export function status(value) {
  const dot = value === "running" ? element("span", { class: "dot", "aria-hidden": "true" }) : null;
  return element("span", { class: `status ${value}` }, dot, value === "running" ? "live" : value);
}

export function when(finding) {
  const parts = [`since step ${step(finding.first_step)}`];
  if (finding.detected_step !== finding.first_step) parts.push(`detected at step ${step(finding.detected_step)}`);
  parts.push(finding.ongoing ? "still there" : `last seen at step ${step(finding.last_step)}`);
  return parts.join(", ");
}

const FEW = 4; // layers that are named one by one

/** Where a finding is, in few words. */
export function place(finding) {
  return finding.layers.length > FEW ? [named(finding.place)] : where(finding.layers, FEW, finding.kinds);
}

/** All its layers by name, for whoever wants to know, where there are more than a few. */
export function allLayers({ layers }) {
  if (layers.length <= FEW) return null;
  return element("details", {}, element("summary", {}, `All ${step(layers.length)} by name`), element("p", { class: "small" }, where(layers, MOST)));
}

/** The first few layers by name. */
export function where(layers, most = 3, kinds = {}) {
  if (!layers.length) return ["the training as a whole"];
  const names = layers.slice(0, most).flatMap((layer, place) => [place ? ", " : "", named(layer), kinds[layer] ? element("span", { class: "quiet" }, ` (${kinds[layer].slice(0, 60)})`) : ""]);
  return layers.length > most ? [...names, ` and ${step(layers.length - most)} more`] : names;
}

// Evidence that is a sentence and no measurement, and quantities whose values are numbers for names.
const WORDS = new Set(["consequence", "place", "first_nonfinite", "gradient_state", "gradient_optimizer", "gradient_carried", "activation_training",
  "loss_broadcast", "loss_input_is_probability", "loss_input_is_logit", "optimizer_rebuilt"]);

export function evidence(one) {
  return { text: one.how, layer: one.layer, quantity: WORDS.has(one.quantity) ? null : one.quantity, value: one.value, expected: one.expected };
}
