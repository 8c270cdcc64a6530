// What keys do, and a page that tells.

import { dialog, element } from "./dom.js";

const HEATMAP = [["← → ↑ ↓", "move the heatmap; with Shift, farther (click it first)"], ["+ −", "zoom the steps"], ["[ ]", "fewer or more rows"],
  ["0", "show everything"], ["Home End", "the first or the newest steps"]];

/** `more` are keys of this page; `wheel` says when the wheel zooms. */
export function help(more, wheel) {
  const rows = [...HEATMAP, ...more].flatMap(([keys, what]) => [element("dt", {}, element("kbd", {}, keys)), element("dd", {}, what)]);
  dialog("Keys", [element("dl", { class: "keys" }, rows), element("p", { class: "quiet" },
    `On the heatmap: ${wheel}, with Shift the rows; dragging moves it; a click pins a row; a double click shows everything. On a chart: dragging chooses steps.`)]);
}

/** Calls what belongs to a key, unless somebody is typing. */
export function onKeys(acts) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog") || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
}
