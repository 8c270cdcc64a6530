// The steps that are shown, and the one under the cursor: one for all charts of a page.

import { Axis } from "./axis.js";

const LEAST = 8; // steps

export class Span {
  constructor(extent) {
    this.extent = { ...extent }; // first and one past the last step of the run
    this.first = extent.first;
    this.last = extent.last;
    this.cursor = null;
    this.paused = false;
    this.axis = new Axis();
    this.listeners = new Set();
    this.watchers = new Set();
  }

  get whole() { return this.first <= this.extent.first && this.last >= this.extent.last; }

  onChange(listener) { this.listeners.add(listener); return () => this.listeners.delete(listener); }
  onCursor(watcher) { this.watchers.add(watcher); return () => this.watchers.delete(watcher); }

  point(step) {
    if (step === this.cursor) return;
    this.cursor = step;
    for (const watcher of this.watchers) watcher();
  }

  /** Show these steps, within reach of the run. */
  show(first, last) {
    const width = Math.max(Math.min(LEAST, this.extent.last - this.extent.first), Math.min(last - first, this.extent.last - this.extent.first));
    let begin = first + (last - first - width) / 2;
    begin = Math.max(this.extent.first, Math.min(begin, this.extent.last - width));
    if (begin === this.first && begin + width === this.last) return;
    this.first = begin;
    this.last = begin + width;
    this.#tell();
  }

  showAll() { this.show(this.extent.first, this.extent.last); }
  move(steps) { this.show(this.first + steps, this.last + steps); }

  zoom(factor, around) {
    const middle = around ?? (this.first + this.last) / 2;
    this.show(middle - (middle - this.first) * factor, middle + (this.last - middle) * factor);
  }

  /** The run has grown. Who looked at its end goes on doing so. */
  grow(extent) {
    const wasWhole = this.whole, atEnd = this.last >= this.extent.last, width = this.last - this.first;
    this.extent = { ...extent };
    if (!this.paused && wasWhole) { this.first = extent.first; this.last = extent.last; }
    else if (!this.paused && atEnd) { this.first = extent.last - width; this.last = extent.last; }
    this.#tell();
  }

  #tell() { for (const listener of this.listeners) listener(); }
}
