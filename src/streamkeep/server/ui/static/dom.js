// Makes elements and texts. Text is always set as text: nothing here parses markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && typeof value === "boolean") made[name] = value;
    else made.setAttribute(name, value);
  }
  append(made, children);
  return made;
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

// Set a text only where it differs, so that a refresh disturbs neither readers nor selections.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keep the children of `parent` as one element per item. `make` returns an element, which may
// have a method `refresh(item)`. Elements that stay are moved only when their order changes: focus is kept.
export function keyed(parent, items, keyOf, make) {
  const known = new Map([...parent.children].map((one) => [one.dataset.itemKey, one]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let one = known.get(key);
    known.delete(key);
    if (!one) {
      one = make(item);
      one.dataset.itemKey = key;
    }
    one.refresh?.(item);
    if (one === at) at = at.nextElementSibling;
    else parent.insertBefore(one, at);
  }
  for (const one of known.values()) one.remove();
}

// --- names: text, or {"base64": ...} -------------------------------------------------------------

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function escapeHidden(found) {
  const code = found.codePointAt(0);
  return ESCAPES[found] ?? (code < 256 ? `\\x${code.toString(16).padStart(2, "0")}`
    : `\\u${code.toString(16).padStart(4, "0")}`);
}

export function bytesOf(name) {
  if (typeof name === "string") return new TextEncoder().encode(name);
  return Uint8Array.from(atob(name.base64), (one) => one.charCodeAt(0));
}

// Blanks at either end are shown, too.
export function named(name, className = "name") {
  const text = textOf(name).replace(/^ +| +$/g, (blanks) => "␣".repeat(blanks.length));
  if (text === "") return el("span", { class: `${className} empty-name` }, "empty name");
  return el("bdi", { class: className, title: text.length > 60 ? text.slice(0, 500) : null }, text);
}

// A name as text that shows every character: control, invisible and direction characters escaped.
export function textOf(name) {
  if (typeof name === "string") return name.replace(HIDDEN, escapeHidden);
  return [...bytesOf(name)].map((byte) => byte > 31 && byte < 127
    ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, "0")}`).join("");
}

export function percent(name) {
  if (typeof name === "string" && name.isWellFormed?.() !== false) return encodeURIComponent(name);
  return [...bytesOf(name)].map((byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
}

// --- numbers and times ---------------------------------------------------------------------------

const integers = new Intl.NumberFormat("en");
const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];

export function count(value) {
  return value === null || value === undefined ? "–" : integers.format(value);
}

export function many(value, one, more = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : more}`;
}

export function entries(value) {
  return many(value, "entry", "entries");
}

export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  let left = bytes;
  for (const unit of UNITS) {
    left /= 1024;
    if (left < 1000 || unit === "PiB") return `${left < 10 ? left.toFixed(1) : Math.round(left)} ${unit}`;
  }
}

export function span(ms) {
  if (ms < 0) return "0 s";
  const seconds = ms / 1000;
  if (seconds < 1) return `${Math.round(ms)} ms`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  if (seconds < 86400 * 700) return `${count(Math.round(seconds / 86400))} days`;
  return `${count(Math.round(seconds / 86400 / 365))} years`;
}

export function ago(ms, now) {
  if (ms === null || ms === undefined) return "–";
  return now - ms < 2000 && now - ms > -2000 ? "now" : now < ms ? `in ${span(ms - now)}` : `${span(now - ms)} ago`;
}

export function rate(perSecond) {
  if (perSecond === null) return "–";
  if (perSecond === 0) return "0/s";
  if (perSecond < 1) return `${(perSecond * 60).toFixed(perSecond * 60 < 10 ? 1 : 0)}/min`;
  return `${perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond))}/s`;
}

const MAX_MS = 253402300799999;

export function isTime(ms) {
  return ms >= 946684800000 && ms <= MAX_MS; // IDs such as 1-0 are no times
}

export function clock(ms, precise = false) {
  if (!isTime(ms)) return `${count(ms)} ms`;
  const text = new Date(ms).toISOString();
  return `${text.slice(0, 10)} ${text.slice(11, precise ? 23 : 19)}`;
}

export function time(ms, now, precise = false) {
  if (ms === null || ms === undefined) return el("span", {}, "–");
  const full = clock(ms, true);
  if (!isTime(ms)) return el("span", { class: "num" }, full);
  return el("time", { datetime: new Date(ms).toISOString(), title: `${full} UTC` },
    now === null ? clock(ms, precise) : ago(ms, now));
}

export function idMs(id) {
  return Number(id.slice(0, id.indexOf("-")));
}
