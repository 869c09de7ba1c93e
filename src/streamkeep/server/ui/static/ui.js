// Parts that views share: sections, tables, dialogs, notices, views that refresh themselves.

import { el, fill } from "./dom.js";

export function section(title, { note = null, tools = null, id = null } = {}, ...children) {
  const heading = el("h2", { id }, title);
  return el("section", id ? { "aria-labelledby": id } : {},
    el("div", { class: "section-head" }, heading, note && el("span", { class: "quiet" }, note),
      tools && el("div", { class: "tools" }, tools)), ...children);
}

// A table whose cells carry the name of their column, which phones show beside them.
export function table(caption, columns) {
  const body = el("tbody");
  const made = el("table", { class: "data" }, el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, columns.map((one) =>
      el("th", { scope: "col", class: one.class ?? null, title: one.hint ?? null }, one.title)))), body);
  return { box: el("div", { class: "table-box" }, made), body, table: made };
}

export function cell(column, ...children) {
  return el("td", { class: column.class ?? null, "data-title": column.title }, ...children);
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
  notice(error.next ? `${error.message} Next: ${error.next}.` : error.message, "failed");
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

// Call `refresh` now and every `seconds`, while the page is shown and until the view ends.
export function repeat(signal, seconds, refresh) {
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
      } finally { running = false; }
    }
    if (!signal.aborted) timer = setTimeout(turn, 1000 * seconds);
  }
  document.addEventListener("visibilitychange", turn, { signal });
  turn();
  return turn;
}
