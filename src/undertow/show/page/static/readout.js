// What lies under the cursor, in words.

import { decode, markOf } from "./colours.js";
import { element, named } from "./dom.js";
import { short, step as stepText } from "./numbers.js";

export class Readout {
  constructor(heatmap, quantity) {
    this.heatmap = heatmap;
    this.quantity = quantity;
    this.node = element("div", { class: "tip", role: "status", hidden: true });
  }

  show(place) {
    this.node.hidden = place === null;
    if (place === null) return;
    const entry = this.heatmap.rows.rows[place.row], cell = place.step === null ? null : this.heatmap.cell(place.step, place.row);
    const several = entry.members.length > 1 ? ` (the most telling of ${entry.members.length} layers)` : "";
    const facts = entry.layer ? [entry.layer.kind, entry.layer.shape?.length ? entry.layer.shape.join(" × ") : null].filter(Boolean).join(", ") : "";
    const lines = [element("strong", {}, named(entry.label)), facts ? element("div", { class: "quiet" }, facts) : null];
    if (cell) {
      const word = markOf(cell.code) ?? short(decode(cell.code), 2);
      const steps = cell.last > cell.first ? `steps ${stepText(cell.first)}–${stepText(cell.last)}` : this.heatmap.span.axis.word(cell.first);
      lines.push(element("div", {}, `${this.quantity().replaceAll("_", " ")} `, element("strong", {}, word), several), element("div", { class: "quiet" }, steps));
      if (cell.earlier) lines.push(element("div", { class: "quiet" }, `last seen: ${markOf(cell.earlier.code) ?? short(decode(cell.earlier.code), 2)} at step ${stepText(cell.earlier.first)}`));
    } else if (place.step !== null) {
      lines.push(element("div", { class: "quiet" }, `step ${stepText(place.step)}: not here yet`));
    }
    this.node.replaceChildren(...lines.filter(Boolean));
    const { width, height } = this.heatmap, box = this.node.getBoundingClientRect();
    const left = place.x + 16 + box.width > width ? place.x - 16 - box.width : place.x + 16;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.max(0, Math.min(height - box.height - 4, place.y + 14))}px`;
  }
}
