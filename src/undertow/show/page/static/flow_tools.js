// The flow of gradient to take away: modules and connections as numbers, and as a picture.

import { button, csv, dialog, download, element, shortened, table } from "./dom.js";
import { short } from "./numbers.js";
import { savePicture } from "./saving.js";

const ROW = 20, ARCS = 150, NAMES = 300, BARS = 260, WIDTH = 960; // pixels
const MODULES = ["module", "what", "gradient norm", "gain", "share"], EDGES = ["from", "to", "share", "gain", "kind"];
const BOTH = ["kind", "module", "feeds", "gradient norm", "gain", "share"];

/** `page` has rows() as they are shown now, its connections and its name. */
export function flowTools(page) {
  const modules = () => page.rows().map(({ name, note, value, gain, share }) => [name, note, value, gain, share]);
  const edges = () => page.edges.map((edge) => [edge.from_layer, edge.to_layer, edge.flow_share, edge.flow_strength, (edge.edge_type ?? "unknown").toLowerCase()]);
  const both = () => [...modules().map(([name, note, ...numbers]) => [note || "module", name, "", ...numbers]),
    ...edges().map(([from, to, share, gain, kind]) => [`${kind} connection`, from, to, "", gain, share])];
  const shown = (rows) => rows.map((row) => row.map((cell) => (typeof cell === "number" ? short(cell, 4) : cell ?? "–")));
  return element("span", { class: "tools no-print" },
    button("Table", () => dialog("Flow", [table(MODULES, shown(modules()), page.now.textContent), table(EDGES, shown(edges()), "Connections")]), { class: "quiet" }),
    button("CSV", () => download(`${page.run.name}-flow.csv`, csv(BOTH, both())), { class: "quiet" }),
    button("PNG", () => savePicture(`${page.run.name}-flow.png`, picture(page), { title: `${page.run.name.slice(0, 80)}: gradient norm by module`, note: page.now.textContent }), { class: "quiet" }));
}

/** The rows as they are shown, however many: arcs, names, bars and numbers. */
function picture(page) {
  const rows = page.rows(), canvas = document.createElement("canvas"), pen = canvas.getContext("2d"), style = getComputedStyle(page.node), ink = (name) => style.getPropertyValue(name);
  canvas.width = WIDTH;
  canvas.height = ROW * Math.min(rows.length, 1500) + 10;
  pen.fillStyle = ink("--surface");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.textBaseline = "middle";
  for (const { from, to, path } of page.drawn) {
    const far = Math.abs(to - from), top = ROW * (from + 0.5), bottom = ROW * (to + 0.5), right = ARCS - 8, bend = far < 2 ? 0 : Math.min(1.25 * ARCS, 16 + 22 * Math.log2(far));
    pen.strokeStyle = getComputedStyle(path).stroke;
    pen.globalAlpha = far < 2 ? 0.85 : 0.3;
    pen.lineWidth = Number(path.getAttribute("stroke-width"));
    pen.beginPath();
    pen.moveTo(right, top);
    pen.bezierCurveTo(right - bend, top, right - bend, bottom, right, bottom);
    pen.stroke();
  }
  pen.globalAlpha = 1;
  rows.forEach(({ name, note, value, level, bad }, place) => {
    const y = ROW * (place + 0.5), left = ARCS + NAMES;
    pen.fillStyle = ink("--text");
    pen.font = "12px system-ui, sans-serif";
    pen.fillText(shortened(name, 44), ARCS + 4, y);
    pen.fillStyle = ink("--code");
    pen.fillRect(left, y - 5, BARS, 10);
    pen.fillStyle = ink(bad ? "--nonfinite" : "--accent");
    pen.fillRect(left, y - 5, BARS * level, 10);
    pen.fillStyle = ink("--text");
    pen.fillText(value === null ? "–" : typeof value === "number" ? short(value) : value, left + BARS + 14, y);
    pen.fillStyle = ink("--quiet");
    pen.fillText(note, left + BARS + 100, y);
    pen.beginPath();
    pen.arc(ARCS - 8, y, 3, 0, 2 * Math.PI);
    pen.fill();
  });
  return canvas;
}
