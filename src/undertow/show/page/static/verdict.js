// The first thing on the page of a run: is it healthy, what is wrong, where, since when, why, what next.

import { link } from "./address.js";
import { code, element } from "./dom.js";
import { count, short, step } from "./numbers.js";
import { evidence, health, place, severity, when } from "./words.js";

function line(label, ...content) {
  return [element("dt", {}, label), element("dd", {}, ...content)];
}

export function why(finding) {
  const first = finding.evidence[0];
  if (!first) return finding.summary;
  const { text, quantity, value, expected } = evidence(first);
  if (!quantity || value === null) return text;
  return `${text} (${quantity.replaceAll("_", " ")} ${short(value)}${expected === null ? "" : `, expected ${short(expected)}`})`;
}

/** `onShow(finding)` brings its layers and steps into sight. */
export function verdict(run, diagnosis, onShow, lossHistory = null) {
  const { findings, steps } = diagnosis, first = findings.find((finding) => finding.severity !== "info") ?? null;
  const alarms = findings.filter((finding) => finding.severity !== "info").length;
  const head = element("div", { class: "head" },
    element("h1", {}, health(diagnosis.status === "failed" ? "critical" : diagnosis.health, diagnosis.verdict)),
    element("p", { class: "quiet" }, element("span", { class: "extent" }, extent(steps)), ` · ${count(diagnosis.coverage.layers_watched, "layer")}`,
      diagnosis.from_journal && diagnosis.health ? " · as judged while training" : ""),
    element("p", { class: "story" }, diagnosis.story),
    notes(diagnosis));
  if (!first) {
    const { fraction_of_step: cost, bytes_per_step: bytes } = diagnosis.overhead;
    const calm = element("dl", {}, lossHistory ? line("Loss", steps.recorded > 1 ? `${short(lossHistory.first, 4)} at first, ${short(lossHistory.last, 4)} now, ${short(lossHistory.least, 4)} at best (step ${step(lossHistory.at)})` : short(lossHistory.last, 4)) : [],
      cost === null ? [] : line("Cost", `watching took ${short(100 * cost, 2)} % of the step time${bytes ? `, ${size(bytes)} a step on disk` : ""}`),
      findings.length ? line("Notes", element("a", { href: link("findings", { run }) }, findings.length === 1 ? "1 thing to know" : `${findings.length} things to know`)) : []);
    return element("section", { class: "verdict", "aria-label": "Verdict" }, head, calm.children.length ? element("div", { class: "facts" }, calm) : null);
  }
  const remedy = first.remedies[0];
  const facts = element("dl", {},
    line("What", severity(first.severity), " ",
      element("a", { href: link("findings", { run, code: first.code }) }, `${first.code} ${first.name}`),
      first.confidence < 0.8 ? element("span", { class: "quiet" }, ` (${Math.round(100 * first.confidence)} % sure)`) : null,
      alarms > 1 ? element("a", { class: "more", href: link("findings", { run }) }, `and ${alarms - 1} more`) : null),
    line("Where", place(first), " ", element("button", { type: "button", class: "quiet", onclick: () => onShow(first) }, "Show")),
    line("When", when(first)),
    line("Why", why(first)),
    remedy ? line("Next", remedy.what) : null);
  return element("section", { class: "verdict", "aria-label": "Verdict" }, head, element("div", { class: "facts" }, facts), remedy?.how ? code(remedy.how) : null);
}

export function extent(steps) {
  return steps.recorded ? `steps ${step(steps.first)}–${step(steps.last)}, ${step(steps.recorded)} recorded` : "no steps recorded";
}

function size(bytes) {
  return bytes >= 1e6 ? `${short(bytes / 1e6)} MB` : bytes >= 1e3 ? `${short(bytes / 1e3)} kB` : `${Math.round(bytes)} bytes`;
}

function notes({ coverage, story }) {
  const told = story.toLowerCase(), reasons = coverage.reasons.filter((reason) => !told.includes(reason.replace(/\.$/, "").toLowerCase()));
  if (!reasons.length) return null;
  return element("details", {}, element("summary", {}, `${reasons.length === 1 ? "1 note" : `${reasons.length} notes`} on what was recorded`),
    element("ul", {}, reasons.map((reason) => element("li", {}, reason))));
}
