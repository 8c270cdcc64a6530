// Dark or light: as the system has it, until somebody chooses.

const KEPT = "undertow-theme";

export function theme() {
  return document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

export function changeTheme() {
  document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
  try { localStorage.setItem(KEPT, theme()); } catch { /* a browser that keeps nothing */ }
}

/** The choice of an earlier visit; `onChange` hears when the system changes. */
export function beginTheme(onChange) {
  try { const kept = localStorage.getItem(KEPT); if (kept) document.documentElement.dataset.theme = kept; } catch { /* none kept */ }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
}
