// Mouse, touch and keys on the heatmap.

import { GUTTER } from "./heatmap.js";

const FAST = 1.0015; // zoom per unit of a wheel
const CLICK = 4; // pixels that a hand may shake

/** With `considerate`, the wheel scrolls the page until somebody clicks the heatmap; with Ctrl, or pinched, it zooms at once. */
export function handle(heatmap, considerate = false) {
  const { canvas, span } = heatmap;
  let held = null;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = { x: event.offsetX, y: event.offsetY, first: span.first, last: span.last, top: heatmap.top, moved: false, gutter: event.offsetX < GUTTER };
    canvas.setPointerCapture(event.pointerId);
  });

  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const right = event.offsetX - held.x, down = event.offsetY - held.y;
      held.moved ||= Math.abs(right) + Math.abs(down) > CLICK;
      if (!held.moved) return;
      canvas.classList.add("moving");
      if (!held.gutter) {
        const steps = (right / heatmap.plot.width) * (held.last - held.first);
        span.show(held.first - steps, held.last - steps);
      }
      heatmap.showRows(held.top - (down / heatmap.plot.height) * heatmap.visible, heatmap.visible);
      return;
    }
    point(event);
  });

  canvas.addEventListener("pointerup", (event) => {
    canvas.classList.remove("moving");
    const clicked = held && !held.moved;
    held = null;
    if (!clicked) return;
    const row = rowAt(event);
    if (row === null) return;
    const entry = heatmap.rows.rows[row];
    const closes = event.offsetX < GUTTER && (event.offsetX < 18 || !entry.layer || heatmap.plot.height / heatmap.visible < 13);
    if (closes && entry.group) heatmap.actions.onGroup(entry.group);
    else if (entry.layer) heatmap.actions.onPick(entry.layer);
    else heatmap.actions.onGroup(entry.group);
  });

  canvas.addEventListener("pointercancel", () => { held = null; canvas.classList.remove("moving"); });
  canvas.addEventListener("pointerleave", () => { heatmap.row = null; span.point(null); heatmap.actions.onPoint(null); });

  canvas.addEventListener("wheel", (event) => {
    if (considerate && !event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    const turn = event.deltaY * (event.deltaMode === 1 ? 30 : 1), sideways = event.deltaX;
    if (event.shiftKey || event.altKey) {
      heatmap.zoomRows(FAST ** (turn || sideways), heatmap.rowAt(event.offsetY));
    } else if (event.offsetX < GUTTER) {
      heatmap.showRows(heatmap.top + (turn / heatmap.plot.height) * heatmap.visible, heatmap.visible);
    } else if (Math.abs(sideways) > Math.abs(turn)) {
      span.move((sideways / heatmap.plot.width) * (span.last - span.first));
    } else {
      span.zoom(FAST ** turn, heatmap.stepAt(event.offsetX));
    }
    point(event);
  }, { passive: false });

  canvas.addEventListener("dblclick", () => { span.showAll(); heatmap.showRows(0, heatmap.rows.count); });

  canvas.addEventListener("keydown", (event) => {
    const width = span.last - span.first, far = event.shiftKey ? 0.5 : 0.1;
    const acts = {
      ArrowLeft: () => span.move(-width * far),
      ArrowRight: () => span.move(width * far),
      ArrowUp: () => heatmap.showRows(heatmap.top - heatmap.visible * far, heatmap.visible),
      ArrowDown: () => heatmap.showRows(heatmap.top + heatmap.visible * far, heatmap.visible),
      Home: () => span.show(span.extent.first, span.extent.first + width),
      End: () => span.show(span.extent.last - width, span.extent.last),
      "+": () => span.zoom(0.7), "=": () => span.zoom(0.7), "-": () => span.zoom(1 / 0.7),
      "[": () => heatmap.zoomRows(1 / 0.7), "]": () => heatmap.zoomRows(0.7),
      0: () => { span.showAll(); heatmap.showRows(0, heatmap.rows.count); },
    };
    if (event.ctrlKey || event.metaKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });

  function rowAt(event) {
    if (!heatmap.rows || event.offsetY > heatmap.plot.height) return null;
    const row = Math.floor(heatmap.rowAt(event.offsetY));
    return row >= 0 && row < heatmap.rows.count ? row : null;
  }

  function point(event) {
    const row = rowAt(event), step = Math.floor(heatmap.stepAt(event.offsetX));
    heatmap.row = row;
    const inside = row !== null && event.offsetX >= GUTTER && step >= span.first - 1 && step < span.last;
    span.point(inside ? step : null);
    if (!inside) heatmap.drawCursor();
    heatmap.actions.onPoint(row === null ? null : { row, step: inside ? step : null, x: event.offsetX, y: event.offsetY });
  }
}
