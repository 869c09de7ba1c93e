// Fields of an entry as cards, tables and JSON; values of any bytes.

import { bytesOf, clock, count, el, fill, idMs, isTime, many, named, textOf } from "./dom.js";
import { button, segmented } from "./ui.js";

const CUT = 400; // characters of a value that are shown at once
const SHORT = 80; // characters, up to which JSON stays on its line
const MOST_JSON = 100000; // characters, above which a text is shown as it is

export function when(id) {
  const ms = idMs(id);
  return [isTime(ms) ? el("time", { datetime: new Date(ms).toISOString() }, clock(ms, true)) : null, el("code", {}, id)];
}

export function entryItem(entry) {
  return el("li", {}, el("div", { class: "entry-id" }, when(entry.id)), pairsOf(entry.pairs));
}

function pairsOf(pairs) {
  return el("dl", { class: "pairs" }, pairs.map(([field, value]) => el("div", {}, el("dt", {}, named(field)), el("dd", {}, valueOf(value)))));
}

// The fields of an entry, as a table or as JSON.
export function fieldsBox(pairs) {
  const shown = el("div");
  const tabs = segmented("How the fields are shown", [["Table", pairsOf], ["JSON", (all) => el("pre", { class: "value" }, safe(jsonOf(all)))]],
    (make) => fill(shown, make(pairs)));
  fill(shown, pairsOf(pairs));
  return [tabs, shown];
}

function jsonOf(pairs) {
  const members = pairs.map(([field, value]) => `${JSON.stringify(textOf(field))}:${pretty(value) ?? JSON.stringify(value)}`);
  return pretty(`{${members.join(",")}}`) ?? members.join(",\n");
}

// JSON with a member on each line; null for any other text. Numbers stay as they are written.
export function pretty(text) {
  if (typeof text !== "string" || text.length > MOST_JSON || !/^\s*[[{]/.test(text)) return null;
  try { JSON.parse(text); } catch { return null; }
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
  return text.replace(/"(?:[^"\\]|\\.)*"|[[{]\s*[\]}]|[[{\]},:]|\s+/g, (one) => {
    if (one[0] === '"') return one;
    if (one.length > 1 && !/^\s/.test(one)) return one[0] + one.at(-1);
    if (one === "{" || one === "[") { depth += 1; return one + line(); }
    if (one === "}" || one === "]") { depth -= 1; return line() + one; }
    return one === "," ? one + line() : one === ":" ? ": " : "";
  });
}

function safe(part) {
  return part.split("\n").map((line) => textOf(line)).join("\n");
}

export function valueOf(value) {
  const text = (value.length > SHORT ? pretty(value) : null) ?? plain(value);
  const bytes = typeof value === "string" ? null : bytesOf(value).length;
  const shown = el("span", { class: bytes === null ? "value" : "value binary", dir: "auto" });
  const note = bytes === null ? null : el("span", { class: "quiet" }, ` ${many(bytes, "byte")}`);
  if (text.length <= CUT) { shown.textContent = safe(text); return [shown, note]; }
  shown.textContent = `${safe(text.slice(0, CUT))}…`;
  const all = button(`show all ${count(text.length)} characters`, () => { shown.textContent = safe(text); all.remove(); }, { class: "link" });
  return [shown, note, " ", all];
}

// --- files ---------------------------------------------------------------------------------------

// A name or value as it is, as `streamkeep dump` writes it to CSV; of bytes, what `named` shows.
export function plain(value) {
  return typeof value === "string" ? value : textOf(value);
}

function cellOf(value) {
  const text = plain(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csvOf(entries, columns) {
  const lines = entries.map((one) => {
    const values = new Map(one.pairs.map(([field, value]) => [plain(field), value]));
    return [one.id, ...columns.map((column) => values.get(column) ?? "")];
  });
  return [["id", ...columns], ...lines].map((line) => `${line.map(cellOf).join(",")}\r\n`);
}

export function linesOf(entries) {
  return entries.map((one) => {
    const fields = Object.fromEntries(one.pairs);
    const whole = Object.keys(fields).length === one.pairs.length && one.pairs.every(([field]) => typeof field === "string");
    return `${JSON.stringify(whole ? { id: one.id, fields } : one)}\n`;
  });
}

export function save(parts, name, type) {
  const href = URL.createObjectURL(new Blob(parts, { type }));
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60000);
}
