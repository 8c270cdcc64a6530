// Pictures to take away: they say what they show, as nothing stands around them any more.

import { download } from "./dom.js";

const HEAD = 34; // pixels above the picture

/** A drawing with a line above it, saved as PNG: its title, the names of its curves in their inks, a note; `scale` is a small canvas with the colours between its two ends, or nothing. */
export function savePicture(name, drawing, { ratio = 1, title, names = [], note = "", scale = null }) {
  const sheet = document.createElement("canvas"), pen = sheet.getContext("2d"), style = getComputedStyle(document.body);
  sheet.width = drawing.width;
  sheet.height = drawing.height + Math.round(HEAD * ratio);
  pen.fillStyle = style.getPropertyValue("--surface");
  pen.fillRect(0, 0, sheet.width, sheet.height);
  pen.drawImage(drawing, 0, Math.round(HEAD * ratio));
  pen.scale(ratio, ratio);
  pen.textBaseline = "middle";
  let left = 10;
  const write = (text, ink, font) => {
    pen.font = font;
    pen.fillStyle = style.getPropertyValue(ink);
    pen.fillText(text, left, HEAD / 2);
    left += pen.measureText(text).width + 10;
  };
  write(title, "--text", "600 13px system-ui, sans-serif");
  if (scale) {
    const [low, high] = scale.ends;
    write(low, "--text", "12px system-ui, sans-serif");
    pen.drawImage(scale.canvas, left, HEAD / 2 - 6, 140, 12);
    left += 150;
    write(high, "--text", "12px system-ui, sans-serif");
  }
  for (const [text, ink] of names) write(text, ink, "600 12px system-ui, sans-serif");
  write(note, "--quiet", "12px system-ui, sans-serif");
  sheet.toBlob((blob) => download(name, blob));
}
