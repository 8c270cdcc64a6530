// The address of the page holds all of its state: a link shows somebody else the same.

let home = "runs";

/** Which page an address without one means. */
export function beginAt(page) { home = page; }

export function read() {
  const [page, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { page: page || home, query: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(page, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept).toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

let pending = {};
let due = 0;

/** Change parts of the query without a new page; a null removes one. Browsers refuse many changes a second. */
export function update(changes) {
  pending = { ...pending, ...changes };
  const { page } = read();
  clearTimeout(due);
  due = setTimeout(() => { if (read().page === page) updateNow({}); }, 150);
}

/** For changes that must be in the address at once. */
export function updateNow(changes) {
  clearTimeout(due);
  const { page, query } = read();
  try { history.replaceState(null, "", link(page, { ...query, ...pending, ...changes })); } catch { /* a page within another has no address of its own */ }
  pending = {};
}

/** Another page: what was about to be written belongs to the one before. */
export function forget() {
  clearTimeout(due);
  pending = {};
}
