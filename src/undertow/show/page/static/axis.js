// What stands along the steps: their numbers, the time since the start, or the time of day. The places are those of the steps throughout.

import { step as stepText, ticks } from "./numbers.js";

const SIZES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800]; // seconds
export const KINDS = [["step", "step"], ["time", "time since start"], ["clock", "time of day"]];

export class Axis {
  constructor(kind = "step") {
    this.kind = kind;
    this.steps = [];
    this.times = [];
  }

  /** `times` are seconds since 1970, one for some of the steps; clocks that were set back stand still. */
  know({ steps, times }) {
    let newest = -Infinity;
    this.steps = steps;
    this.times = times.map((time) => (newest = Math.max(newest, time)));
  }

  get isTime() { return this.kind !== "step" && this.steps.length > 1; }

  get name() { return !this.isTime ? "step" : this.kind === "time" ? "time" : "clock"; }

  /** Places and words for the steps between two, about `wanted` of them. */
  marks(first, last, wanted) {
    if (!this.isTime) return ticks(first, last, wanted).filter(Number.isInteger).map((value) => [value, stepText(value)]);
    const begin = this.#time(first), end = this.#time(last), size = SIZES.find((one) => one >= (end - begin) / Math.max(1, wanted)) ?? (end - begin) / wanted;
    // Round times of day are round in the zone of who looks.
    const from = this.kind === "time" ? this.times[0] : 60 * new Date(begin * 1000).getTimezoneOffset(), found = [];
    for (let time = from + Math.ceil((begin - from) / size) * size; time <= end && found.length < 50; time += size) found.push([this.#step(time), this.words(time, size)]);
    return found;
  }

  /** A step in words. */
  word(step) { return this.isTime ? `step ${stepText(step)}, ${this.words(this.#time(step))}` : `step ${stepText(step)}`; }

  words(time, size = 1) {
    if (this.kind === "clock") {
      const date = new Date(time * 1000);
      if (size >= 86400) return date.toLocaleDateString();
      return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(size < 60 ? { second: "2-digit" } : {}), hour12: false });
    }
    const past = Math.round(time - this.times[0]), [hours, minutes, seconds] = [Math.floor(past / 3600), Math.floor(past / 60) % 60, past % 60];
    const two = (value) => String(value).padStart(2, "0");
    return past < 60 ? `${past} s` : hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${minutes}:${two(seconds)}`;
  }

  #time(step) { return between(this.steps, this.times, step); }
  #step(time) { return between(this.times, this.steps, time); }
}

/** The value at a place between known ones, and as far beyond their ends as the nearest two tell. */
function between(places, values, place) {
  let low = 0, high = places.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (places[middle] <= place) low = middle; else high = middle;
  }
  const width = places[high] - places[low];
  return width > 0 ? values[low] + ((place - places[low]) / width) * (values[high] - values[low]) : values[low];
}
