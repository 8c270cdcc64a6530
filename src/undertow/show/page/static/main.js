// The frame around every page: its bar, its theme, its keys, and which page is shown.

import * as address from "./address.js";
import { button, element, named, notice } from "./dom.js";
import { help, onKeys } from "./keys.js";
import { askAhead, cutOff } from "./server.js";
import { beginTheme, changeTheme } from "./theme.js";

const PAGES = {
  runs: () => import("./pages/runs.js"),
  run: () => import("./pages/run.js"),
  findings: () => import("./pages/findings.js"),
  compare: () => import("./pages/compare.js"),
  flow: () => import("./pages/flow.js"),
  weights: () => import("./pages/weights.js"),
};
const OF_A_RUN = [["run", "Run"], ["findings", "Findings"], ["flow", "Flow"], ["weights", "Weights"]];
const KEYS = [["/", "filter"], ["p", "pause and go on"], ["t", "dark or light"], ["g r", "all runs"], ["?", "these keys"]];

const PATIENCE = 5000; // milliseconds

let current = null;
let shown = 0;

/** `again`: the same page with newer numbers; the old one stays until they are there. */
async function show(again = false) {
  address.forget();
  const { page, query } = address.read(), turn = ++shown, before = current;
  const main = document.getElementById("main");
  if (!again) {
    before?.end?.();
    current = null;
    drawBar(page, query);
  }
  if (page === "run" && query.run !== undefined) {
    askAhead("run", { run: query.run });
    askAhead("scale", { run: query.run, quantity: query.quantity ?? "gradient_norm" });
    askAhead("colours", {});
  }
  try {
    const module = await (PAGES[page] ?? PAGES.runs)();
    const next = await module.open(query, (details) => drawBar(page, query, details), { again: () => show(true) });
    if (turn !== shown) { next.end?.(); return; }
    if (again) before?.end?.();
    current = next;
    main.replaceChildren(next.node);
    next.begin?.();
  } catch (error) {
    if (turn !== shown || again) return;
    main.replaceChildren(trouble(error));
    drawBar(page, query, { badge: element("span", { class: "problem" }, cutOff(error)) }); // what it said before is no longer so
    // A run that has not begun, or a server that is started anew: it may be there soon.
    if (error.status === 404 || cutOff(error)) setTimeout(() => showAgain(turn), PATIENCE);
  }
}

/** As soon as somebody looks, unless another page is shown by then. */
function showAgain(turn) {
  if (turn !== shown) return;
  if (document.hidden) document.addEventListener("visibilitychange", () => showAgain(turn), { once: true });
  else show();
}

function trouble(error) {
  return element("section", { class: "trouble" }, element("h1", {}, "This cannot be shown"), element("p", {}, error.message),
    error.wayOut ? element("p", { class: "quiet" }, error.wayOut) : null,
    element("p", {}, button("Try again", () => show()), " ", element("a", { href: "#/runs" }, "All runs")));
}

function drawBar(page, query, details = {}) {
  document.title = details.name ? `${details.name.slice(0, 80)} · Undertow` : "Undertow";
  const tabs = query.run === undefined || page === "runs" ? [] : OF_A_RUN.map(([name, title]) =>
    element("a", { href: address.link(name, { run: query.run }), "aria-current": name === page ? "page" : null }, title));
  document.getElementById("bar").replaceChildren(
    element("a", { class: "brand", href: "#/runs" }, "Undertow"),
    details.name ? element("span", { class: "run" }, named(details.name)) : "",
    element("nav", { "aria-label": "Pages" }, tabs),
    element("span", { class: "live" }, details.badge ?? ""),
    button("Link", copyLink, { class: "quiet", title: "Copy the address of this view" }),
    button("Theme", swapTheme, { class: "quiet", title: "Dark or light (t)" }),
    button("Keys", tellKeys, { class: "quiet", title: "Keys (?)" }));
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    notice("The address of this view is copied");
  } catch {
    notice("Copy the address from the bar of your browser");
  }
}

function tellKeys() { help(KEYS, "the wheel zooms the steps"); }

function swapTheme() {
  changeTheme();
  current?.redraw?.();
}

let before = "";

addEventListener("keydown", (event) => {
  if (before === "g" && event.key === "r" && !event.target.closest("input, select, textarea, dialog")) location.hash = "#/runs";
  before = event.key;
});
onKeys({ "?": tellKeys, t: swapTheme, "/": () => current?.focusFilter?.(), p: () => current?.pause?.() });
addEventListener("hashchange", () => show());
beginTheme(() => current?.redraw?.());
show();
