// How the values of a layer are spread, under its quantiles: the darker, the larger the share of its elements.

import { step as stepText } from "./numbers.js";

const FAINT = 0.002; // shares below this do not widen the axis

/** Which power of two the bucket of the lowest, or highest, noticeable share begins at. */
function edges({ shares }) {
  let first = Infinity, last = -Infinity;
  for (const column of shares) {
    column.forEach((share, place) => { if (share >= FAINT) { first = Math.min(first, place); last = Math.max(last, place); } });
  }
  return [first, last];
}

export function lowest(density) { return 2 ** (density.low + edges(density)[0]); }
export function highest(density) { return 2 ** (density.low + edges(density)[1] + 1); }

export function paintDensity(pen, plot, colour, { steps, ends, low, shares }, x, y) {
  const most = Math.max(...shares.map((column) => Math.max(...column)));
  pen.save();
  pen.beginPath();
  pen.rect(plot.left, plot.top, plot.width, plot.height);
  pen.clip();
  pen.fillStyle = colour;
  shares.forEach((column, place) => {
    const left = Math.round(x(steps[place])), right = Math.max(left + 1, Math.round(x(ends[place] + 1)));
    if (right < plot.left || left > plot.left + plot.width) return;
    column.forEach((share, bucket) => {
      if (share <= 0) return;
      const top = Math.round(y(2 ** (low + bucket + 1))), bottom = Math.round(y(2 ** (low + bucket)));
      pen.globalAlpha = 0.04 + 0.76 * Math.sqrt(share / most);
      pen.fillRect(left, top, right - left, bottom - top);
    });
  });
  pen.restore();
}

/** What is measured, and what is interpolated. */
export function densityNote(density) {
  if (!density) return "";
  const { measured, steps } = density;
  if (!measured) return "shade: interpolated between the quantiles; the lowest 5 % are not drawn";
  return `shade: share of elements by power of two, counted at ${stepText(steps.length)} histogram frames`;
}

/** For tables: a line for each bucket that holds anything. */
export function densityRows(density) {
  if (!density) return [];
  const { steps, low, shares } = density;
  return shares.flatMap((column, place) => column.map((share, bucket) => [`share from 2^${low + bucket} to 2^${low + bucket + 1}`, steps[place], "", share, ""]).filter(([, , , share]) => share > 0));
}
