// From codes to pixels: a table of 65,536 colours, made once for a scale.

export const NOT_SAMPLED = 0x7fc1;
const NOT_FINITE = 0x7fc0, FROZEN = 0x7fc2, NO_GRADIENT = 0x7fc3, INFINITE = 0x7f80;
export const WORST = 1 << 20; // the rank of what is not finite
const single = new Float32Array(1), bits = new Uint32Array(single.buffer);

export function decode(code) {
  bits[0] = code << 16;
  return single[0];
}

export function isNonfinite(code) {
  return code === NOT_FINITE || (code & 0x7fff) === INFINITE;
}

/** What a cell says when it has no number, or null. */
export function markOf(code) {
  if (code === NOT_SAMPLED) return "not sampled";
  if (code === FROZEN) return "frozen";
  if (code === NO_GRADIENT) return "no gradient";
  if (code === NOT_FINITE) return "not finite";
  if (code === INFINITE) return "+∞";
  if (code === (INFINITE | 0x8000)) return "−∞";
  return null;
}

/** From 0 to 1: where a number lies on its scale. */
export function level(value, scale) {
  const { kind, low, high } = scale;
  if (kind === "linear") return (value - low) / (high - low);
  const size = Math.log(Math.abs(value) / low) / Math.log(high / low);
  if (kind === "signed") return value === 0 ? 0.5 : 0.5 + 0.5 * Math.sign(value) * Math.max(0, Math.min(1, size));
  return value <= 0 ? 0 : size;
}

export function valueAt(place, scale) {
  const { kind, low, high } = scale;
  if (kind === "linear") return low + place * (high - low);
  if (kind === "signed") {
    const side = 2 * place - 1;
    return Math.abs(side) < 1e-9 ? 0 : Math.sign(side) * low * (high / low) ** Math.abs(side);
  }
  return low * (high / low) ** place;
}

const FARTHEST = 100; // times the usual number, and the hundredth part of it: the ends of the scale

const pack = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;

export class Colouring {
  constructor(colours, scale, scheme) {
    this.scale = scale;
    this.scheme = scheme;
    this.shades = (scale.diverging ? colours.diverging : colours.sequential)[scheme];
    this.marks = colours.marks[scheme];
    this.pixels = new Int32Array(65536);
    this.stroke = new Uint8Array(65536); // which pattern lies over it: its place in `patterns`, from 1
    this.patterns = this.marks.filter((mark) => mark.pattern !== "plain");
    this.rank = new Int32Array(65536); // which cell stands for several: the worst news, then the largest number
    const fixed = new Map(this.marks.map((mark) => [mark.code, pack(mark.colour)]));
    const bad = fixed.get(NOT_FINITE), over = new Map(this.patterns.map((mark, place) => [mark.code, place + 1]));
    for (let code = 0; code < 65536; code++) {
      const size = code & 0x7fff;
      if (isNonfinite(code)) {
        this.pixels[code] = bad;
        this.stroke[code] = over.get(NOT_FINITE) ?? 0;
        this.rank[code] = WORST;
      } else if (size > INFINITE) {
        this.pixels[code] = fixed.get(code) ?? fixed.get(NOT_SAMPLED);
        this.stroke[code] = over.get(fixed.has(code) ? code : NOT_SAMPLED) ?? 0;
        this.rank[code] = [NOT_SAMPLED, FROZEN, NO_GRADIENT].indexOf(code);
      } else if (size === 0 && scale.kind === "logarithmic") {
        this.pixels[code] = fixed.get(0);
        this.stroke[code] = over.get(0) ?? 0;
        this.rank[code] = 3;
      } else {
        const place = Math.max(0, Math.min(255, Math.round(255 * level(decode(code), scale))));
        this.pixels[code] = pack(this.shades[place]);
        this.rank[code] = (1 << 18) + (scale.diverging ? size : code & 0x8000 ? -size : size);
      }
    }
  }

  /** From now on, colours tell how a layer differs from its own usual number: `usual` has one for each layer. */
  relateTo(usual, colours) {
    const logs = Float32Array.from({ length: 65536 }, (_, code) => (markOf(code) === null && code > 0 && code < 0x8000 ? Math.log(decode(code)) : NaN));
    this.relative = { logs, usual: Float32Array.from(usual, (value) => (value > 0 ? Math.log(value) : NaN)), reach: Math.log(FARTHEST), pixels: Int32Array.from(colours.diverging[this.scheme], pack) };
    this.shades = colours.diverging[this.scheme];
    this.scale = { kind: "signed", low: 1, high: FARTHEST, diverging: true };
    return this;
  }

  css(place) { return `rgb(${this.shades[Math.max(0, Math.min(255, Math.round(255 * place)))].join(" ")})`; }
}
