// The tiles of one run that have been fetched, and the order in which the others are.

import { getTile } from "./server.js";

const KEPT = 160; // tiles; one of 1,000 layers holds half a megabyte
const AT_ONCE = 4;
const PATIENCE = 2000; // milliseconds after a failure

export class Tiles {
  constructor(run, columns, onArrival) {
    this.run = run;
    this.columns = columns;
    this.onArrival = onArrival;
    this.kept = new Map(); // the most recently used last
    this.loading = new Map();
    this.waiting = [];
    this.subject = "";
    this.query = {};
    this.failed = null;
    this.quietUntil = 0;
  }

  /** Which quantity, and which statistic of it, the tiles are of. */
  choose(query) {
    this.query = query;
    this.subject = JSON.stringify(query);
    for (const { abort } of this.loading.values()) abort.abort();
    this.loading.clear();
    this.waiting = [];
    this.failed = null;
  }

  #key(level, index) { return `${this.subject} ${level} ${index}`; }

  get(level, index) {
    const key = this.#key(level, index), tile = this.kept.get(key);
    if (tile) {
      this.kept.delete(key);
      this.kept.set(key, tile);
    }
    return tile;
  }

  /** Tiles of other levels that cover some of these steps, coarse ones first: better than nothing. */
  standIns(first, last, level) {
    const found = [];
    for (const tile of this.kept.values()) {
      if (tile.subject !== this.subject || tile.level === level) continue;
      const width = this.columns * 2 ** tile.level;
      if (tile.index * width < last && (tile.index + 1) * width > first) found.push(tile);
    }
    return found.sort((one, other) => other.level - one.level);
  }

  /** Fetch these, in this order, and forget what was wanted before. */
  want(places) {
    this.waiting = places.filter(({ level, index }) => {
      const key = this.#key(level, index), tile = this.kept.get(key);
      return !this.loading.has(key) && (!tile || tile.stale);
    });
    this.#next();
  }

  /** The run has grown: tiles at its end are worth fetching again. */
  grown(lastStep) {
    for (const tile of this.kept.values()) {
      const end = (tile.index + 1) * this.columns * 2 ** tile.level - 1;
      if (tile.lastStep < end && tile.lastStep < lastStep) tile.stale = true;
    }
  }

  forgetAll() {
    this.kept.clear();
    this.choose(this.query);
  }

  #next() {
    if (performance.now() < this.quietUntil) return;
    while (this.waiting.length && this.loading.size < AT_ONCE) this.#fetch(this.waiting.shift());
  }

  async #fetch({ level, index }) {
    const key = this.#key(level, index), subject = this.subject, abort = new AbortController();
    this.loading.set(key, { abort });
    try {
      const { codes, lastStep } = await getTile({ run: this.run, ...this.query, level, index }, abort.signal);
      this.kept.delete(key);
      this.kept.set(key, { subject, level, index, codes, lastStep, stale: false, painted: null });
      while (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
      this.failed = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.failed = error;
      this.quietUntil = performance.now() + PATIENCE;
      setTimeout(this.onArrival, PATIENCE + 50);
    } finally {
      if (this.loading.get(key)?.abort === abort) this.loading.delete(key);
    }
    this.onArrival();
    this.#next();
  }
}
