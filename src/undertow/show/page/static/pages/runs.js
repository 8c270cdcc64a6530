// All runs below the folder that is served.

import * as address from "../address.js";
import { element, named } from "../dom.js";
import { ago, short, step } from "../numbers.js";
import { matcher } from "../rows.js";
import { getJson } from "../server.js";
import { GLYPHS, health, status } from "../words.js";

const AGAIN = 4000;

export async function open(query) {
  let listing = await getJson("runs");
  const ticked = new Set((query.ticked ?? "").split(",").filter(Boolean).map(decodeURIComponent));
  const compare = element("a", { class: "action", hidden: true }, "Compare"), hint = element("span", { class: "quiet small" });
  const body = element("tbody");
  const summary = element("p", { class: "quiet" });
  const filter = element("input", { type: "search", placeholder: "Filter: name, health …  (/)", "aria-label": "Filter runs", value: query.filter ?? "",
    oninput: () => { address.update({ filter: filter.value }); draw(); } });
  const node = element("section", { class: "page" },
    element("header", { class: "row" }, element("h1", {}, "Runs"), filter, summary, element("span", { class: "grow" }), hint, compare),
    element("table", { class: "data runs" },
      element("thead", {}, element("tr", {}, ["", "Run", "Health", "Status", "Steps", "Last loss", "First finding", "Begun"].map((title, place) =>
        element("th", { scope: "col", class: place === 4 || place === 5 ? "number" : null }, title || element("span", { class: "unseen" }, "Compare"))))), body));

  function draw() {
    const matches = matcher(filter.value);
    const found = listing.runs.filter((run) => matches(run.name) || matches(run.id) || matches(run.status) || matches(run.health ?? "no verdict"));
    summary.replaceChildren(`${step(found.length)} of ${step(listing.runs.length)} in `, named(listing.root));
    body.replaceChildren(...found.map(row));
    if (!listing.runs.length) {
      body.replaceChildren(element("tr", {}, element("td", { colspan: "8" }, "There are no runs here yet. ",
        element("code", {}, "undertow run train.py"), " or ", element("code", {}, "undertow demo"), " makes one; this page finds it by itself.")));
    }
  }

  function row(run) {
    const readable = run.status !== "unreadable";
    const title = readable ? element("a", { href: address.link("run", { run: run.id }) }, named(run.name)) : named(run.name);
    const folder = run.id !== "." && run.id !== run.name ? element("div", { class: "quiet small" }, named(run.id)) : null;
    const problem = run.problem ? element("div", { class: "small problem" }, named(run.problem)) : null;
    const loss = run.last_loss === null && run.has_loss ? "not finite" : short(run.last_loss, 4);
    const tick = element("input", { type: "checkbox", "aria-label": `Compare ${run.name.slice(0, 80)}`, checked: ticked.has(run.id), onchange: (event) => {
      if (event.target.checked) ticked.add(run.id); else ticked.delete(run.id);
      address.update({ ticked: [...ticked].map(encodeURIComponent).join(",") });
      drawCompare();
    } });
    return element("tr", {}, element("td", {}, readable && run.steps ? tick : ""),
      element("td", {}, title, folder, problem), element("td", {}, readable ? health(run.health) : ""), element("td", {}, status(run.status)),
      element("td", { class: "number" }, step(run.steps)), element("td", { class: "number" }, readable && run.steps ? loss : "–"),
      element("td", {}, run.finding ? [element("span", { class: `severity ${run.finding.severity}` }, GLYPHS[run.finding.severity]), ` ${run.finding.code} ${run.finding.name.replaceAll("-", " ")}`] : ""),
      element("td", { title: run.created ? new Date(run.created * 1000).toLocaleString() : null }, ago(run.created)));
  }

  function drawCompare() {
    compare.hidden = ticked.size < 2;
    hint.textContent = ticked.size >= 2 || listing.runs.length < 2 ? "" : ticked.size ? "Tick another one to compare" : "Tick two or more to compare them";
    compare.textContent = `Compare ${ticked.size} runs`;
    compare.href = address.link("compare", { runs: [...ticked].map(encodeURIComponent).join(",") });
  }

  draw();
  drawCompare();
  const timer = setInterval(async () => {
    if (document.hidden) return;
    try { listing = await getJson("runs"); draw(); } catch { /* the next look may find the server again */ }
  }, AGAIN);
  return { node, end: () => clearInterval(timer), focusFilter: () => filter.focus() };
}
