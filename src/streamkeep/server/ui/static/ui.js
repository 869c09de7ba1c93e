// Parts that views share: sections, tables, dialogs, notices, views that refresh themselves.

import { query } from "./api.js";
import { el, fill, keyed, named, setText } from "./dom.js";

export function section(title, { note = null, tools = null, id = null } = {}, ...children) {
  const heading = el("h2", { id }, title);
  return el("section", id ? { "aria-labelledby": id } : {},
    el("div", { class: "section-head" }, heading, note && el("span", { class: "quiet" }, note),
      tools && el("div", { class: "tools" }, tools)), ...children);
}

// Buttons of which one is pressed, at first the first: `choices` are [title, value], `pick` gets a value.
export function segmented(label, choices, pick) {
  const box = el("div", { class: "segmented", role: "group", "aria-label": label }, choices.map(([title, value], at) =>
    button(title, (event) => {
      for (const one of box.children) one.setAttribute("aria-pressed", one === event.currentTarget);
      pick(value);
    }, { "aria-pressed": String(at === 0) })));
  return box;
}

// A table that is refreshed in place; its cells carry the name of their column, which phones show
// beside them. A column has `make(item)` for what stays, and for what changes
// `text(item, now)` or `show(item, now)` for nodes, `tip(item, now)` and `warn(item)`.
// With `detail(item)`, which returns a promise of nodes, a button in the first cell opens a row below.
export function rows(caption, columns, { keyOf, none, detail = null }) {
  const body = el("tbody"), nothing = el("div");
  const table = el("table", { class: "data" }, el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, columns.map((one) =>
      el("th", { scope: "col", class: one.class ?? null, title: one.hint ?? null }, one.title)))), body);
  const opened = new Map();
  let last = [[], 0];

  function toggle(item, key, opener) {
    const opens = !opened.delete(key);
    opener.setAttribute("aria-expanded", opens);
    if (opens) {
      const inner = el("div", { class: "detail" }, "Loading…");
      opened.set(key, el("tr", { class: "opened" }, el("td", { colspan: columns.length }, inner)));
      detail(item).then((found) => fill(inner, found), (error) => fill(inner, el("p", { class: "quiet" },
        error.status === 404 ? "It is gone: it was deleted, or has ended and no result is kept." : error.message)));
    }
    show(...last);
  }

  function make(item) {
    const key = keyOf(item);
    const cells = columns.map((one) => el("td", { class: one.class ?? null, "data-title": one.title }, one.make?.(item)));
    if (detail) {
      const opener = button([...cells[0].childNodes], () => toggle(item, key, opener), { class: "opener", "aria-expanded": "false" });
      cells[0].append(opener);
    }
    const row = el("tr", {}, cells);
    row.show = (now, time) => columns.forEach((one, at) => {
      if (one.text) setText(cells[at], one.text(now, time));
      if (one.show) fill(cells[at], one.show(now, time));
      if (one.tip) cells[at].title = one.tip(now, time);
      if (one.warn) cells[at].classList.toggle("warn", one.warn(now));
    });
    return row;
  }

  function show(items, now) {
    last = [items, now];
    for (const key of opened.keys()) if (!items.some((one) => keyOf(one) === key)) opened.delete(key);
    const all = items.flatMap((one) => opened.has(keyOf(one)) ? [[one, ""], [one, "below "]] : [[one, ""]]);
    keyed(body, all, ([one, below]) => below + keyOf(one), ([one, below]) => below ? opened.get(keyOf(one)) : make(one));
    all.forEach(([one, below], at) => { if (!below) body.children[at].show(one, now); });
    table.hidden = !items.length;
    fill(nothing, items.length ? null : typeof none === "function" ? none() : empty(none));
  }
  return { box: [el("div", { class: "table-box" }, table), nothing], show };
}

export function empty(title, text) {
  return el("div", { class: "empty" }, el("p", { class: "empty-title" }, title), text && el("p", {}, text));
}

export function facts(rows) {
  return el("dl", { class: "facts" }, rows.filter(Boolean).map(([name, ...value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export function button(text, onclick, more = {}) {
  return el("button", { type: "button", onclick, ...more }, text);
}

export function notice(text, kind = "done") {
  const box = document.getElementById("notice");
  box.hidden = !text;
  box.className = `notice ${kind}`;
  fill(box, text);
  clearTimeout(notice.timer);
  if (text && kind === "done") notice.timer = setTimeout(() => { box.hidden = true; }, 5000);
}

export function problem(error) {
  if (error.name === "AbortError") return;
  const next = error.next && !/^(GET|PUT|POST) /.test(error.next); // others are for programs
  notice(next ? `${error.message} Next: ${error.next}.` : error.message, "failed");
}

// Ask before something is changed; resolves to the value of the field, or true, or null.
export function ask(title, text, { field = null, action = "OK", danger = false } = {}) {
  return new Promise((resolve) => {
    const input = field && el("input", { name: "value", required: true, autocomplete: "off", value: field.value ?? "" });
    const box = el("dialog", { "aria-labelledby": "dialog-title" },
      el("form", { method: "dialog" },
        el("h2", { id: "dialog-title" }, title), el("p", {}, text),
        input && el("label", {}, field.title, input),
        el("div", { class: "tools" },
          button("Cancel", () => box.close()),
          el("button", { value: "yes", class: danger ? "primary danger" : "primary" }, action))));
    box.addEventListener("close", () => {
      box.remove();
      resolve(box.returnValue === "yes" ? (input ? input.value : true) : null);
    });
    document.body.append(box);
    box.showModal();
  });
}

export function link(path, members) {
  return `#${path}?${query(members)}`;
}

// Take the place of a view whose stream, group or queue is not there.
export function missing(main, what, name, href, list) {
  fill(main, el("div", { class: "empty" }, el("p", { class: "empty-title" }, `There is no ${what} `, named(name), "."),
    el("p", {}, el("a", { href }, list))));
}

// A command as a person types it; tests run each of them.
export function command(text) {
  return el("code", {}, text);
}

// Call `refresh` now and every `seconds`, while the page is shown and until the view ends; `gone`
// when there is nothing more to show.
export function repeat(signal, seconds, refresh, gone = null) {
  let timer = null;
  let running = false;
  async function turn() {
    clearTimeout(timer);
    if (signal.aborted || running) return;
    if (!document.hidden) {
      running = true;
      try {
        await refresh();
        if (!signal.aborted && document.getElementById("notice").classList.contains("failed")) notice("");
      } catch (error) {
        if (!signal.aborted) problem(error);
        if (error.status === 401) return;
        if (error.status === 404 && gone && !signal.aborted) { notice(""); gone(); return; }
      } finally { running = false; }
    }
    if (!signal.aborted) timer = setTimeout(turn, 1000 * seconds);
  }
  document.addEventListener("visibilitychange", turn, { signal });
  turn();
  return turn;
}
