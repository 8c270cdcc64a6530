// A table whose columns sort it: first the largest on top, then the smallest, then as it was.

import { button, csv, download, element } from "./dom.js";
import { short } from "./numbers.js";
import { matcher } from "./rows.js";

const MOST_ROWS = 1000;

/** `columns`: title, value of a row, and optionally how it is shown and what it means; the first is the name that is filtered by. */
export function sortable(columns, rows, { label, file, filter: wanted = "", sort: sorted = "", onChange = () => {} }) {
  const [column, direction] = sorted.split("."); // as `onChange` is told
  let order = columns[column] ? [Number(column), direction === "up" ? 1 : -1] : [0, 0]; // column, direction
  const body = element("tbody"), head = element("tr"), left = element("p", { class: "quiet small" });
  const isNumber = columns.map(([, value]) => rows.every((row) => typeof (value(row) ?? 0) === "number"));
  const filter = element("input", { type: "search", placeholder: "Filter tensors", "aria-label": `Filter ${label}`, value: wanted, oninput: () => { draw(); onChange({ tensors: filter.value }); } });

  function shown() {
    const matches = matcher(filter.value), found = rows.filter((row) => matches(columns[0][1](row))), value = columns[order[0]][1];
    if (!order[1]) return found;
    return found.sort((one, other) => {
      const [first, second] = [value(one), value(other)];
      if (first === null || second === null) return (first === null) - (second === null);
      return order[1] * (typeof first === "string" ? first.localeCompare(second) : first - second);
    });
  }

  function draw() {
    head.replaceChildren(...columns.map(([title, , , hint], place) => {
      const turn = order[0] === place ? order[1] : 0;
      return element("th", { scope: "col", class: isNumber[place] ? "number" : null, "aria-sort": turn ? (turn > 0 ? "ascending" : "descending") : null },
        button(`${title}${turn ? (turn > 0 ? " ↑" : " ↓") : ""}`, () => sort(place), { class: "sorter", title: hint }));
    }));
    const found = shown();
    body.replaceChildren(...found.slice(0, MOST_ROWS).map((row) => element("tr", {}, columns.map(([, value, show], place) => {
      const cell = value(row);
      return element("td", { class: isNumber[place] ? "number" : null }, show ? show(row, cell) : typeof cell === "number" ? short(cell) : cell ?? "–");
    }))));
    left.textContent = found.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${found.length.toLocaleString("en")} are shown: filter, or download them all.` : "";
  }

  function sort(place) {
    order = order[0] === place ? [place, order[1] === -1 ? 1 : order[1] === 1 ? 0 : -1] : [place, -1];
    onChange({ sort: order[1] ? `${order[0]}.${order[1] > 0 ? "up" : "down"}` : null });
    draw();
  }

  draw();
  const save = () => download(file, csv(columns.map(([title]) => title), shown().map((row) => columns.map(([, value]) => value(row)))));
  const node = element("div", {}, element("div", { class: "row" }, filter, element("span", { class: "grow" }), button("CSV", save, { class: "quiet" })),
    element("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": label }, element("table", { class: "data" }, element("thead", {}, head), body)), left);
  return { node, filter };
}
