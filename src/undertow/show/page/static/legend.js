// What the colours of the heatmap mean.

import { element } from "./dom.js";
import { NOT_SAMPLED, valueAt } from "./colours.js";
import { short } from "./numbers.js";
import { patternOf } from "./painter.js";

export function legend(place, colouring, quantity) {
  const { scale } = colouring;
  const bar = element("canvas", { width: "180", height: "12", "aria-hidden": "true" }), pen = bar.getContext("2d");
  for (let x = 0; x < 180; x++) {
    pen.fillStyle = colouring.css(x / 179);
    pen.fillRect(x, 0, 1, 12);
  }
  const stops = scale.diverging ? [0, 0.5, 1] : [0, 1], { relative } = colouring;
  const ends = relative ? [`1/${scale.high}`, "1", `${scale.high}`] : stops.map((stop) => short(valueAt(stop, scale)));
  const kind = relative ? "times the layer’s own median" : { logarithmic: "logarithmic", linear: "linear", signed: "logarithmic on both sides of 0" }[scale.kind];
  const marks = colouring.marks.filter((mark) => mark.code !== 0 || scale.kind === "logarithmic" || relative).map((mark) => {
    const patch = element("canvas", { width: "14", height: "14", class: "patch", "aria-hidden": "true" }), pen = patch.getContext("2d");
    pen.fillStyle = mark.pattern === "plain" ? `rgb(${mark.colour.join(" ")})` : pen.createPattern(patternOf(mark, 1, mark.colour), "repeat");
    pen.fillRect(0, 0, 14, 14);
    return element("span", { class: "mark" }, patch, mark.code === NOT_SAMPLED ? `${mark.name} (with a tint of what was last seen)` : mark.name);
  });
  place.replaceChildren(
    element("span", { class: "mark" }, ends[0], " ", bar, " ", ends.at(-1)),
    element("span", { class: "quiet" }, kind), ...marks,
    element("span", { class: "quiet grow right what", title: quantity?.of ?? null }, quantity?.what ?? ""));
}
