// A tile as a picture of its own, a pixel for each cell: moving it about then costs next to nothing.

import { NOT_SAMPLED, WORST } from "./colours.js";

/** The code that stands for several layers, in each column. */
export function fold(codes, columns, members, from, to, rank, best) {
  best.set(codes.subarray(members[from] * columns, (members[from] + 1) * columns));
  for (let place = from + 1; place < to; place++) {
    const base = members[place] * columns;
    for (let column = 0; column < columns; column++) {
      const code = codes[base + column];
      if (rank[code] > rank[best[column]]) best[column] = code;
    }
  }
  return best;
}

/** The same where every layer is seen beside its own usual number: the one that is farthest from it stands for all. */
function foldRelative(codes, columns, members, from, to, { relative, pixels, rank }, best, shades) {
  const { logs, usual, reach, pixels: colours } = relative, middle = colours.length / 2;
  for (let column = 0; column < columns; column++) {
    let code = codes[members[from] * columns + column], far = -1, apart = 0;
    for (let place = from; place < to; place++) {
      const other = codes[members[place] * columns + column], log = logs[other] - usual[members[place]];
      if (log === log) { // a number, and the layer has a usual one
        if (Math.abs(log) > far && rank[code] < WORST) { code = other; far = Math.abs(log); apart = log; }
      } else if (rank[other] === WORST || (far < 0 && rank[other] > rank[code])) {
        code = other;
        far = rank[other] === WORST ? Infinity : -1;
      }
    }
    best[column] = code;
    shades[column] = far >= 0 && far < Infinity
      ? colours[Math.max(0, Math.min(colours.length - 1, Math.round(middle + middle * (apart / reach))))] : pixels[code];
  }
}

function canvasOf(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = Math.max(1, height);
  return canvas;
}

/** Half of one colour and half of another. */
const between = (one, other) => (255 << 24) | (((one & 0xfefefe) >>> 1) + ((other & 0xfefefe) >>> 1));

/**
 * `bundle` says which layers make up each row; `before` is the tile to the left, painted, or nothing. Returns the picture, and for each
 * pattern a mask of what it lies over, or nothing. Steps that were not sampled have a tint of what was last seen: a run is sampled.
 */
export function paint(tile, columns, bundle, colouring, before = null) {
  const seenBefore = before?.bundle === bundle && before.colouring === colouring ? before.newest : null;
  if (tile.painted?.bundle === bundle && tile.painted.colouring === colouring && tile.painted.seenBefore === seenBefore) return tile.painted;
  const { starts, members } = bundle, height = starts.length - 1;
  const picture = canvasOf(columns, height), context = picture.getContext("2d");
  const image = context.createImageData(columns, Math.max(1, height));
  const pixels = new Int32Array(image.data.buffer), best = new Uint16Array(columns);
  const over = colouring.patterns.map(() => null), { stroke } = colouring;
  const shades = colouring.relative ? new Int32Array(columns) : null;
  const newest = new Int32Array(Math.max(1, height)), unseen = colouring.pixels[NOT_SAMPLED], ended = tile.lastStep / 2 ** tile.level - tile.index * columns;
  for (let row = 0; row < height; row++) {
    if (shades) foldRelative(tile.codes, columns, members, starts[row], starts[row + 1], colouring, best, shades);
    else fold(tile.codes, columns, members, starts[row], starts[row + 1], colouring.rank, best);
    const base = row * columns;
    let seen = seenBefore?.[row] ?? 0;
    for (let column = 0; column < columns; column++) {
      const code = best[column];
      if (code === NOT_SAMPLED) pixels[base + column] = seen && column <= ended ? between(seen, unseen) : unseen;
      else seen = pixels[base + column] = shades ? shades[column] : colouring.pixels[code];
      if (stroke[code]) (over[stroke[code] - 1] ??= new Int32Array(pixels.length))[base + column] = -1;
    }
    newest[row] = seen;
  }
  context.putImageData(image, 0, 0);
  const masks = over.map((cells) => {
    if (!cells) return null;
    const mask = canvasOf(columns, height);
    mask.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(cells.buffer), columns, Math.max(1, height)), 0, 0);
    return mask;
  });
  tile.painted = { bundle, colouring, picture, masks, newest, seenBefore };
  return tile.painted;
}

const rgb = (colour) => (typeof colour === "string" ? colour : `rgb(${colour.join(" ")})`);

/** Strokes and dots over a colour: what has no number is told by more than its colour. As `with_pattern` draws them in pictures. */
export function patternOf({ pattern, over }, ratio, ground = null) {
  const size = Math.round({ hatch: 6, lines: 5, dots: 7, stipple: 9 }[pattern] * ratio), canvas = canvasOf(size, size), pen = canvas.getContext("2d");
  if (ground) { pen.fillStyle = rgb(ground); pen.fillRect(0, 0, size, size); }
  pen.strokeStyle = pen.fillStyle = rgb(over);
  pen.lineWidth = 1.3 * ratio;
  pen.beginPath();
  if (pattern === "hatch") {
    for (const shift of [-size, 0, size]) { pen.moveTo(shift - 1, size + 1); pen.lineTo(shift + size + 1, -1); }
    pen.stroke();
  } else if (pattern === "lines") {
    pen.fillRect(0, Math.floor(size / 2), size, Math.max(1, Math.round(1.1 * ratio)));
  } else {
    const wide = Math.max(1, Math.round((pattern === "dots" ? 2.4 : 1.2) * ratio));
    pen.fillRect(Math.floor(size / 3), Math.floor(size / 3), wide, wide);
  }
  return canvas;
}
