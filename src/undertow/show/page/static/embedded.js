// What `server.js` asks a server for, from a run that the page itself carries: a report, or a cell of a notebook.
// `show/page/snapshot.py` says how it is packed, `show/page/quantise.py` and
// `show/page/densities.py` what the bytes of pictures and distributions mean.

import { decode, isNonfinite } from "./colours.js";

const MARKED = [0, 0x7fc0, 0x7f80, 0xff80, 0x7fc1, 0x7fc2, 0x7fc3], MARKS = 256 - MARKED.length, NOT_SAMPLED = 0x7fc1;
const UNKNOWN = 255; // in place of an exponent
const single = new Float32Array(1), bits = new Uint32Array(single.buffer);

export class Trouble extends Error {
  constructor(message, wayOut = "") {
    super(message);
    this.wayOut = wayOut;
  }
}

let parts = [];
let documents = null;
let opened = new Map(); // quantity → picture
const followers = new Set();

async function unpack(part) {
  if (typeof DecompressionStream === "undefined") throw new Trouble("This browser is too old to show the pictures of this report", "Any browser since 2023 can");
  return new Response(new Blob([part]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** Take over a run, or news of the same one. */
export async function take(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset), count = view.getUint32(0, true);
  let begin = 4 * (1 + count);
  const cut = Array.from({ length: count }, (_, place) => bytes.slice(begin, begin += view.getUint32(4 * (1 + place), true)));
  const told = JSON.parse(new TextDecoder().decode(await unpack(cut[0])));
  [parts, documents, opened] = [cut, told, new Map()];
  for (const tell of followers) tell(structuredClone(documents.run));
  return documents;
}

export function fromBase64(text) {
  const letters = atob(text.trim()), bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  return bytes;
}

export function askAhead() {} // everything is here already

export async function getJson(name, query = {}) {
  const answers = {
    run: () => structuredClone(documents.run), diagnosis: () => documents.diagnosis, colours: () => documents.colours,
    scale: () => factsOf(query.quantity).scale, usual: () => documents.usual[query.quantity], explain: () => documents.explain[query.code],
    times: () => documents.times, flow: () => documents.flow, weights: () => documents.weights,
    scalar: () => within(documents.scalars[query.name], query), line: () => lineOf(query), density: () => densityOf(query),
  };
  const answer = await answers[name]?.();
  if (!answer || answer.problem) throw new Trouble(answer?.problem ?? "This is not part of the report");
  return answer;
}

export async function getTile({ quantity, statistic = "maximum", level, index }) {
  const picture = await open(quantity);
  return { codes: picture.tile(level, index, statistic, documents.run.tile_columns), lastStep: documents.run.steps.last };
}

/** Nothing here is worked out again: what is sent anew has it all. */
export function followSlowly() { return () => {}; }

export function follow(run, onProgress) {
  followers.add(onProgress);
  return () => followers.delete(onProgress);
}

function factsOf(quantity) {
  return documents.pictures.find((one) => one.quantity === quantity) ?? { scale: { kind: "linear", low: 0, high: 1, diverging: false } };
}

function open(quantity) {
  if (!opened.has(quantity)) {
    const place = documents.pictures.findIndex((one) => one.quantity === quantity);
    if (place < 0) return Promise.reject(new Trouble("This quantity is not part of the report"));
    opened.set(quantity, unpack(parts[1 + place]).then((data) => new Picture(documents.pictures[place], data)));
  }
  return opened.get(quantity);
}

/** A line between two steps; parts that are equal are carried once. */
function within(line, { first, last }) {
  const { steps, mean, minimum = mean, maximum = mean, nonfinite } = line;
  const from = Math.max(0, steps.findLastIndex((step) => step < first)), after = steps.findIndex((step) => step > last);
  const to = after < 0 ? steps.length : after + 1;
  return { steps: steps.slice(from, to), minimum: minimum.slice(from, to), mean: mean.slice(from, to), maximum: maximum.slice(from, to),
    nonfinite: nonfinite.filter((place) => place >= from && place < to).map((place) => place - from) };
}

async function lineOf({ quantity, layer, first, last }) {
  const exact = documents.lines[`${quantity} ${layer}`];
  if (exact) return within(exact, { first, last });
  const { modules } = documents.run.quantities.find((one) => one.name === quantity) ?? {};
  const row = documents.run.layers[modules ? "modules" : "parameters"].findIndex((one) => one.id === layer);
  return within((await open(quantity)).line(row, documents.run.steps.last), { first, last });
}

/** The distribution of a layer, as `views/density.py` has it. */
async function densityOf({ stream, layer, first, last }) {
  const number = documents.densities.findIndex((one) => one.stream === stream), facts = documents.densities[number];
  const row = facts?.layers.indexOf(layer) ?? -1;
  if (row < 0) return null;
  const place = 1 + documents.pictures.length + number;
  if (!opened.has(place)) opened.set(place, unpack(parts[place]).then((data) => new Uint8Array(data)));
  const cells = await opened.get(place), { steps, width } = facts, base = row * steps.length * width, known = [];
  steps.forEach((step, column) => {
    const begin = base + column * width;
    if (cells[begin] !== UNKNOWN) known.push({ step, end: (steps[column + 1] ?? documents.run.steps.last + 1) - 1, low: cells[begin] - 127, shares: [...cells.subarray(begin + 1, begin + width)].map((byte) => (byte / 255) ** 2) });
  });
  const after = known.findIndex(({ step }) => step > first), seen = known.slice(after < 0 ? -1 : Math.max(0, after - 1)).filter(({ step }) => step <= last);
  if (!seen.length) return null;
  const low = Math.min(...seen.map((one) => one.low)), high = Math.max(...seen.map((one) => one.low + one.shares.length));
  return { steps: seen.map((one) => one.step), ends: seen.map((one) => one.end), low, measured: true,
    shares: seen.map((one) => Array.from({ length: high - low }, (_, bucket) => one.shares[bucket - (one.low - low)] ?? 0)) };
}

/** The cells of a quantity at the finest level there is. */
class Picture {
  constructor(facts, data) {
    const { rows, columns } = facts;
    Object.assign(this, facts);
    this.low = new Float32Array(data, 0, rows);
    this.step = new Float32Array(data, 4 * rows, rows);
    this.cells = new Uint8Array(data, 8 * rows, rows * columns);
  }

  /** The number that a byte of a row means. */
  value(row, byte) {
    const place = this.low[row] + this.step[row] * byte;
    if (this.kind === "logarithmic") return Math.exp(place);
    return this.kind === "signed" ? this.unit * Math.sinh(place) : place;
  }

  /** For each row the codes that its bytes mean; made once. */
  get tables() {
    return this.made ??= Array.from({ length: this.rows }, (_, row) => {
      const table = new Uint16Array(256);
      for (let byte = 0; byte < MARKS; byte++) table[byte] = encode(this.value(row, byte));
      table.set(MARKED, MARKS);
      return table;
    });
  }

  tile(level, index, statistic, wide) {
    const { rows, columns, first, cells } = this, codes = new Uint16Array(rows * wide).fill(NOT_SAMPLED), size = 2 ** (level - this.level);
    for (let row = 0; row < rows; row++) {
      const table = this.tables[row], base = row * columns;
      for (let column = 0; column < wide; column++) {
        const begin = (index * wide + column) * size - first, from = Math.max(0, Math.floor(begin)), to = Math.min(columns, Math.ceil(begin + size));
        if (from >= to) continue;
        codes[row * wide + column] = to - from === 1 ? table[cells[base + from]] : several(cells, base + from, base + to, table, statistic);
      }
    }
    return codes;
  }

  line(row, lastStep) {
    const { columns, first, cells } = this, size = 2 ** this.level, steps = [], mean = [], nonfinite = [];
    for (let column = 0; column < columns && (first + column) * size <= lastStep; column++) {
      const byte = cells[row * columns + column];
      if (isNonfinite(MARKED[byte - MARKS] ?? 0)) nonfinite.push(column);
      steps.push((first + column) * size);
      mean.push(byte < MARKS ? this.value(row, byte) : byte === MARKS ? 0 : null);
    }
    return { steps, mean, nonfinite };
  }
}

/** As `encode` in views/cell_codes.py: rounded to the upper half of a float32. */
function encode(value) {
  single[0] = value;
  return Math.min(0xffff, (bits[0] + 0x7fff + ((bits[0] >>> 16) & 1)) >>> 16);
}

/** One code for some cells of a row: what is not finite, else the statistic of the numbers, else why there is none. */
function several(cells, from, to, table, statistic) {
  let chosen = NOT_SAMPLED, best = null, total = 0, count = 0;
  for (let place = from; place < to; place++) {
    const code = table[cells[place]];
    if (isNonfinite(code)) return code;
    const value = decode(code);
    if (Number.isNaN(value)) {
      if (best === null && code !== NOT_SAMPLED) chosen = code;
      continue;
    }
    total += value;
    count++;
    if (best === null || (statistic === "minimum" ? value < best : value > best)) [best, chosen] = [value, code];
  }
  return statistic === "mean" && count ? encode(total / count) : chosen;
}
