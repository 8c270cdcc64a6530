// Elements from data. Text is only ever text: names of runs and layers are written by anybody.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** A name as it was given, kept from turning the text around it: it may hold marks for writing from right to left. */
export function named(text, attributes = {}) {
  const name = String(text);
  return element("bdi", { title: name.length > 60 ? name.slice(0, 2000) : null, ...attributes }, shortened(name, 400));
}

/** The middle of a long name goes: its ends tell most. */
export function shortened(text, most) {
  if (text.length <= most) return text;
  const kept = most - 1;
  return `${text.slice(0, Math.ceil(kept * 0.4))}…${text.slice(text.length - Math.floor(kept * 0.6))}`;
}

export function select(label, options, value, onChange) {
  const choices = options.map(([key, text, hint]) =>
    element("option", { value: key, selected: key === value, title: hint }, text));
  const field = element("select", { onchange: (event) => onChange(event.target.value) }, choices);
  return element("label", { class: "field" }, element("span", {}, label), field);
}

export function button(text, onPress, attributes = {}) {
  return element("button", { type: "button", onclick: onPress, ...attributes }, text);
}

let fading = 0;

/** A word that goes away by itself, and is read out by screen readers. */
export function notice(text) {
  const place = document.getElementById("notice");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => place.classList.remove("shown"), 2500);
}

export function copyButton(text) {
  return button("Copy", async (event) => {
    try {
      await navigator.clipboard.writeText(text);
      notice("Copied");
    } catch {
      const field = element("textarea", { class: "unseen", "aria-hidden": "true" }, text);
      event.target.after(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      notice(done ? "Copied" : "This browser does not let a page copy: select the text instead");
    }
  }, { class: "quiet" });
}

/** Code to paste. A line that is too long goes on further in, so that it is not taken for two. */
export function code(text) {
  return element("div", { class: "code" },
    element("pre", { tabindex: "0" }, text.trimEnd().split("\n").map((line) => element("span", {}, `${line}\n`))), copyButton(text));
}

export function download(name, content) {
  const blob = content instanceof Blob ? content : new Blob([content], { type: "text/csv" });
  const link = element("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_").slice(0, 120) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Rows of text as a table that can be read without seeing the picture. */
export function table(titles, rows, caption) {
  const cell = (tag, value) => element(tag, { class: typeof value === "number" ? "number" : null }, value instanceof Node ? value : String(value ?? ""));
  return element("table", { class: "data" },
    caption ? element("caption", {}, caption) : null,
    element("thead", {}, element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((value) => cell("td", value))))));
}

export function csv(titles, rows) {
  const field = (value) => {
    const text = String(value ?? "");
    // A spreadsheet takes what begins so for a formula.
    const safe = typeof value !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [titles, ...rows].map((row) => row.map(field).join(",")).join("\n") + "\n";
}

/** A panel over the page that Escape closes. */
export function dialog(title, content) {
  const box = element("dialog", { "aria-label": title },
    element("header", {}, element("h2", {}, title), button("Close", () => box.close(), { class: "quiet" })),
    element("div", { class: "scroll", tabindex: "0" }, content));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}
