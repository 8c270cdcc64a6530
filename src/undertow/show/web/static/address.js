// The address of the page holds all of its state: a link shows somebody else the same.

export function read() {
  const [page, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { page: page || "runs", query: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(page, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept).toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

let pending = 0;

/** Change parts of the query without a new page; a null removes one. */
export function update(changes) {
  const { page, query } = read();
  const next = link(page, { ...query, ...changes });
  clearTimeout(pending);
  // Browsers refuse many changes a second.
  pending = setTimeout(() => { if (read().page === page) history.replaceState(null, "", next); }, 150);
}

/** For changes that must be in the address at once. */
export function updateNow(changes) {
  clearTimeout(pending);
  const { page, query } = read();
  history.replaceState(null, "", link(page, { ...query, ...changes }));
}
