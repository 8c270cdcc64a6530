// Where findings held, over a chart: a light ground for each severity, and their codes where they begin.

import { GLYPHS } from "./words.js";

const SEVERITIES = Object.keys(GLYPHS); // the worst last

/** `ink` gives the colours of the page, `x` the place of a step. */
export function paintBands(pen, plot, ink, bands, x) {
  const end = plot.left + plot.width;
  for (const severity of SEVERITIES) {
    pen.fillStyle = ink(`--${severity}`);
    for (const { first, last } of joined(bands.filter((band) => band.severity === severity))) {
      const left = Math.max(plot.left, x(first)), right = Math.min(end, x(last + 1));
      if (right < plot.left || left > end) continue;
      pen.globalAlpha = 0.09;
      pen.fillRect(left, plot.top, Math.max(1.5, right - left), plot.height);
      pen.globalAlpha = 1;
      pen.fillRect(left, plot.top, Math.max(1.5, right - left), 2);
      if (x(first) >= plot.left) pen.fillRect(left, plot.top, 1.5, plot.height);
    }
  }
  paintCodes(pen, plot, ink, bands, x);
}

/** Findings that hold at the same time are one ground: two would look worse than either is. */
function joined(bands) {
  const found = [];
  for (const { first, last } of bands.sort((one, other) => one.first - other.first)) {
    const before = found.at(-1);
    if (before && first <= before.last + 1) before.last = Math.max(before.last, last);
    else found.push({ first, last });
  }
  return found;
}

function paintCodes(pen, plot, ink, bands, x) {
  const begun = new Map();
  for (const band of bands) if (band.code) begun.set(band.first, [...(begun.get(band.first) ?? []), band]);
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.textBaseline = "top";
  let free = plot.left;
  for (const [first, [worst, ...others]] of [...begun].sort(([one], [other]) => one - other)) {
    const text = `${GLYPHS[worst.severity]} ${worst.code}${others.length ? ` +${others.length}` : ""}`;
    const at = x(first) + 5, wide = pen.measureText(text).width;
    if (at < free || at + wide > plot.left + plot.width) continue;
    pen.fillStyle = ink("--surface");
    pen.globalAlpha = 0.75;
    pen.fillRect(at - 2, plot.top + 4, wide + 4, 14);
    pen.globalAlpha = 1;
    pen.fillStyle = ink(`--${worst.severity}`);
    pen.fillText(text, at, plot.top + 5);
    free = at + wide + 8;
  }
}
