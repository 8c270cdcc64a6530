// A report: the pages of one run below each other, in one file. In a notebook the run is sent, and sent anew as it grows.

import * as address from "./address.js";
import { button, element, named } from "./dom.js";
import { fromBase64, take } from "./embedded.js";
import { help, onKeys } from "./keys.js";
import { short } from "./numbers.js";
import * as findings from "./pages/findings.js";
import * as flow from "./pages/flow.js";
import * as run from "./pages/run.js";
import * as weights from "./pages/weights.js";
import { beginTheme, changeTheme } from "./theme.js";

const PAGES = { run, findings, flow, weights };
const TITLES = { run: "Run", findings: "Findings", flow: "Flow", weights: "Weights" };
const KEYS = [["/", "filter"], ["t", "dark or light"], ["?", "these keys"]];
const ON_PAPER = { flow: [".flow-row:not(.head)", 40, "modules"], weights: ["tbody tr", 60, "tensors"] }; // as `report.css` has it
const ID = "report"; // of the only run there is

const pages = new Map();
let told = null;

async function show() {
  for (const page of pages.values()) page.end?.();
  pages.clear();
  const main = document.getElementById("main"), { query } = address.read();
  const places = told.pages.map((name) => element("section", { class: "part", id: name }));
  main.replaceChildren(...places, about(told));
  for (const [place, name] of told.pages.entries()) {
    const asked = { ...query, run: ID, finding: findings.ALL };
    try {
      const page = await PAGES[name].open(asked, name === "run" ? drawBar : () => {}, { considerate: true });
      pages.set(name, page);
      places[place].append(page.node);
      if (name in ON_PAPER) places[place].append(onPaper(page.node, ...ON_PAPER[name]));
      page.begin?.();
    } catch (error) {
      places[place].append(element("div", { class: "page" }, element("h1", {}, TITLES[name]), element("p", { class: "problem" }, error.message)));
    }
  }
}

/** Paper does not scroll. */
function onPaper(node, rows, most, what) {
  const count = node.querySelectorAll(rows).length;
  return count > most ? element("p", { class: "paper quiet small" }, `The first ${most} of ${count.toLocaleString("en")} ${what}; the file itself has them all.`) : "";
}

function drawBar({ name, badge }) {
  const links = told.pages.length > 1 ? told.pages.map((page) => element("a", { href: address.link(page) }, TITLES[page])) : [];
  document.getElementById("bar").replaceChildren(
    element("span", { class: "brand" }, "Undertow"), element("span", { class: "run" }, named(name)),
    element("nav", { "aria-label": "Parts" }, links), element("span", { class: "live" }, badge),
    button("Theme", swapTheme, { class: "quiet", title: "Dark or light (t)" }), button("Keys", tellKeys, { class: "quiet", title: "Keys (?)" }));
}

/** What a reader elsewhere wants to know of where the numbers come from. */
function about({ run: { facts, quantities }, diagnosis: { undertow, overhead } }) {
  const cost = overhead.fraction_of_step === null ? null : `${short(100 * overhead.fraction_of_step, 2)} % of the step time`;
  const finest = Math.min(...quantities.map((one) => one.finest)), coarsest = Math.max(...quantities.map((one) => one.finest));
  const coarse = coarsest > 0 ? `${finest === coarsest ? "" : `${2 ** finest} to `}${2 ** coarsest} steps, and shows the largest number` : null;
  const lines = [["made by", `Undertow ${undertow}`], ["begun", facts.created ? new Date(1000 * facts.created).toLocaleString() : null], ["command", facts.command?.join(" ")],
    ["torch", facts.torch], ["device", facts.device], ["message", facts.message], ["watching took", cost], ["a cell of the heatmap covers", coarse]];
  return element("footer", { class: "page about" }, element("dl", {}, lines.filter(([, value]) => value).flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, named(value))])));
}

/** Links between pages of the dashboard lead to places in this one. */
function go(href) {
  const [page, query = ""] = href.replace(/^#\/?/, "").split(/\?(.*)/s), fields = Object.fromEntries(new URLSearchParams(query));
  document.getElementById(page)?.scrollIntoView();
  if (page === "run") pages.get("run")?.showSteps?.(fields);
  if (page === "findings" && fields.code) pages.get("findings")?.showCode?.(fields.code);
}

function tellKeys() { help(KEYS, "once it has been clicked the wheel zooms the steps"); }

function redraw() { for (const page of pages.values()) page.redraw?.(); }

function swapTheme() {
  changeTheme();
  redraw();
}

/** Paper is white, and as wide as it is: canvases are drawn for it, and for the screen again afterwards. */
function print(printing) {
  const root = document.documentElement;
  if (printing) { told.theme = root.dataset.theme; root.dataset.theme = "light"; }
  else if (told.theme) root.dataset.theme = told.theme;
  else delete root.dataset.theme;
  root.classList.toggle("printing", printing);
  for (const page of pages.values()) for (const drawing of page.drawings ?? []) drawing.resize();
}

async function begin(bytes) {
  try {
    const first = told === null;
    told = { ...told, ...await take(bytes) };
    if (first) await show();
  } catch (error) {
    document.getElementById("main").prepend(element("p", { class: "page problem" }, error.message, " ", error.wayOut ?? ""));
  }
}

addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#/']");
  if (!link || event.defaultPrevented) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("hashchange", show);
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
onKeys({ "?": tellKeys, t: swapTheme, "/": () => pages.get("run")?.focusFilter?.() });
beginTheme(redraw);
address.beginAt("run");

const carried = document.getElementById("data").textContent;
if (carried) begin(fromBase64(carried));
else if (parent !== window) {
  addEventListener("message", ({ source, data }) => { if (source === parent && data?.run) begin(new Uint8Array(data.run)); });
  parent.postMessage({ undertow: "ready" }, "*");
}
