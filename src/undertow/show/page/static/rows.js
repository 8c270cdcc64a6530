// Which layers are rows of the heatmap, in which order, and which of them stand together.

const TAIL = 28; // characters

/** `*` and `?` as in file names; without them, any part of the name. Several patterns are separated by blanks. */
export function matcher(text) {
  const patterns = text.trim().split(/[\s,]+/).filter(Boolean).map((pattern) => {
    const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&");
    return /[*?]/.test(pattern)
      ? new RegExp(`^${escaped.replaceAll("*", ".*").replaceAll("?", ".")}$`, "i")
      : new RegExp(escaped, "i");
  });
  return (path) => !patterns.length || patterns.some((pattern) => pattern.test(path));
}

/** How much of all names is the same, in whole parts. */
function common(names) {
  let length = names[0]?.length ?? 0;
  for (const name of names) while (!name.startsWith(names[0].slice(0, length))) length--;
  return names[0]?.lastIndexOf(".", length - 1) + 1 || 0;
}

export function groupOf(path, depth) {
  return depth > 0 ? path.split(".").slice(0, depth).join(".") : "";
}

/** A depth at which groups are few enough to be named. */
export function usualDepth(layers) {
  if (layers.length <= 30) return 0;
  const sizes = [2, 1].map((depth) => [depth, new Set(layers.map((layer) => groupOf(layer.path, depth))).size]);
  return sizes.find(([, size]) => size > 1 && size <= Math.max(24, layers.length / 3))?.[0] ?? 0;
}

export class Rows {
  /** `layers` in the order of a tile; `closed` holds the names of groups that are one row. */
  constructor(layers, { filter = "", depth = 0, closed = new Set() } = {}) {
    const matches = matcher(filter);
    const shown = layers.map((layer, index) => ({ ...layer, index })).filter((layer) => matches(layer.path));
    shown.sort((one, other) => one.place - other.place);
    this.rows = [];
    this.groups = [];
    const grouped = new Map();
    for (const layer of shown) {
      const name = groupOf(layer.path, depth);
      if (!grouped.has(name)) grouped.set(name, []);
      grouped.get(name).push(layer);
    }
    for (const [name, members] of grouped) {
      const isClosed = depth > 0 && members.length > 1 && closed.has(name);
      this.groups.push({ name, first: this.rows.length, count: isClosed ? 1 : members.length, members: members.length, isClosed });
      if (isClosed) this.rows.push({ label: name, members: members.map((layer) => layer.index), group: name });
      else for (const layer of members) this.rows.push({ label: layer.path, members: [layer.index], layer, group: name });
    }
    this.layerCount = shown.length;
    // The end of a name says most, unless many end alike.
    this.endsAlike = new Set(this.rows.map((row) => row.label.slice(-TAIL))).size < this.rows.length / 2;
    this.beginsAlike = this.endsAlike ? common(this.rows.map((row) => row.label)) : 0; // characters that tell nothing
    this.bundles = new Map();
  }

  get count() { return this.rows.length; }

  /** Rows by the `size`: where each bundle begins among the layers, and the layers one after another. */
  bundle(size) {
    if (!this.bundles.has(size)) {
      const starts = [], members = [];
      this.rows.forEach((row, place) => {
        if (place % size === 0) starts.push(members.length);
        members.push(...row.members);
      });
      starts.push(members.length);
      this.bundles.set(size, { size, starts: Int32Array.from(starts), members: Int32Array.from(members), owner: this });
    }
    return this.bundles.get(size);
  }
}
