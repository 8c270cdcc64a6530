// Numbers as people read them.

const grouped = new Intl.NumberFormat("en");

export function step(value) {
  return value === null || value === undefined ? "–" : grouped.format(Math.round(value));
}

export function count(value, noun) {
  return `${grouped.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Three significant digits, small and large ones with an exponent. */
export function short(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(digits))) : Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
  return text.replace("-", "−").replace("e-", "e−");
}

export function ago(seconds) {
  if (!seconds) return "";
  const age = Date.now() / 1000 - seconds;
  const units = [[86400 * 2, 86400, "days"], [7200, 3600, "hours"], [120, 60, "minutes"]];
  for (const [from, unit, name] of units) if (age >= from) return `${Math.round(age / unit)} ${name} ago`;
  return age >= 0 ? "just now" : new Date(seconds * 1000).toLocaleString();
}

/** Round numbers within a range, about `wanted` of them. */
export function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
  const found = [];
  for (let value = Math.ceil(low / size) * size; value <= high + size * 1e-9; value += size) found.push(Number(value.toPrecision(12)));
  return found;
}
