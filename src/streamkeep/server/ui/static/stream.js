// One stream: its entries over time, a range of them, a search, a live tail, and its groups.

import { follow, get, post, put, query, streamPath, groupPath } from "./api.js";
import { bars } from "./charts.js";
import { bytesOf, clock, count, el, entries, fill, idMs, isTime, many, named, percent, size, span, textOf, time } from "./dom.js";
import { ask, button, cell, empty, facts, notice, problem, repeat, section, table } from "./ui.js";

const PAGE = 50;
const TAIL = 500; // entries that a live tail keeps on the page
const CUT = 400; // characters of a value that are shown at once

export function stream(main, state, signal, address) {
  const key = address.key;
  const head = el("div", { class: "title" });
  const figures = el("div", { class: "chart" });
  const ranges = el("div", { class: "segmented", role: "group", "aria-label": "Time that the chart shows" });
  const groups = el("div");
  const list = el("ol", { class: "entries", "aria-label": "Entries" });
  const said = el("p", { class: "quiet", role: "status" });
  const more = button("Show more", () => load(true));
  const form = rangeForm();
  const tail = button("Live tail", () => (following ? stopTail() : startTail()), { "aria-pressed": "false", class: "toggle" });
  let next = null;
  let following = null;
  let loading = null;
  let window = null;

  fill(main, head,
    section("Over time", { id: "time", tools: ranges }, figures),
    section("Entries", { id: "entries", tools: [tail] }, form.box, said, list, more),
    section("Consumer groups", { id: "groups", tools: state.write ? button("Create a group", createGroup) : null }, groups),
    state.write ? appendForm() : null);
  signal.addEventListener("abort", () => { loading?.abort(); following?.abort(); });

  // --- facts and groups --------------------------------------------------------------------------

  repeat(signal, 5, async () => {
    const info = await get(streamPath(key, "info"), signal);
    if (signal.aborted) return;
    showHead(head, info);
    showGroups(groups, info);
  });

  // --- the chart ---------------------------------------------------------------------------------

  async function chart() {
    try {
      const found = await get(streamPath(key, "figures", { buckets: 80, ...window }), signal);
      if (signal.aborted) return;
      const total = [...found.live, ...found.trimmed, ...found.archived, ...found.erased].some(Boolean);
      fill(figures, total ? bars(found, (from, to) => {
        form.set(isTime(from) ? `${clock(from, true).replace(" ", "T")}Z` : String(from),
          isTime(to) ? `${clock(to, true).replace(" ", "T")}Z` : String(to));
        load();
      }) : empty("No entries in this time."),
      total && el("p", { class: "legend quiet" },
        el("span", { class: "key live" }), " live ",
        found.trimmed_entries > 0 && [el("span", { class: "key trimmed" }), ` trimmed, to be archived (${count(found.trimmed_entries)}) `],
        found.archived_entries > 0 && [el("span", { class: "key archived" }), ` archived (${count(found.archived_entries)}) `],
        found.erased_entries > 0 && [el("span", { class: "key erased" }), ` erased from the archive (${count(found.erased_entries)}) `],
        "· ", !found.exact && "Estimated from the index, without reading the entries. ",
        "A bar shows its entries below."));
    } catch (error) { if (!signal.aborted) problem(error); }
  }

  for (const [title, ms] of [["All", null], ["1 week", 604800e3], ["1 day", 86400e3], ["1 hour", 3600e3], ["5 min", 300e3]]) {
    ranges.append(button(title, (event) => {
      window = ms && { start_ms: Date.now() - ms, end_ms: Date.now() };
      for (const one of ranges.children) one.setAttribute("aria-pressed", one === event.currentTarget);
      chart();
    }, { "aria-pressed": String(ms === null) }));
  }
  chart();

  // --- entries -----------------------------------------------------------------------------------

  function rangeForm() {
    const from = el("input", { name: "from", placeholder: "oldest, or -2h", autocomplete: "off", spellcheck: "false" });
    const to = el("input", { name: "to", placeholder: "newest", autocomplete: "off", spellcheck: "false" });
    const text = el("input", { type: "search", name: "text", placeholder: "in fields and values", id: "filter", autocomplete: "off", spellcheck: "false" });
    const order = el("select", { name: "order" }, el("option", { value: "1" }, "newest first"), el("option", { value: "" }, "oldest first"));
    const history = el("input", { type: "checkbox", name: "history" });
    const box = el("form", { class: "range", onsubmit: (event) => { event.preventDefault(); load(); } },
      el("label", {}, "From", from), el("label", {}, "To", to), el("label", { class: "grow" }, "Search", text),
      el("label", {}, "Order", order), el("label", { class: "check" }, history, "with archive"),
      el("div", { class: "tools" }, el("button", { class: "primary" }, "Show"),
        button("Reset", () => { box.reset(); load(); })));
    order.addEventListener("change", () => load());
    history.addEventListener("change", () => load());
    const members = () => ({ start: from.value.trim(), end: to.value.trim(), reverse: order.value, history: history.checked });
    return { box, members, text: () => text.value, set: (low, high) => { from.value = low; to.value = high; } };
  }

  async function load(further = false) {
    stopTail();
    loading?.abort();
    const mine = loading = new AbortController();
    const asked = { ...form.members(), shape: "pairs", count: PAGE };
    const text = form.text();
    if (further && next) asked[asked.reverse ? "end" : "start"] = next;
    if (!further) fill(list);
    more.hidden = true;
    let examined = 0;
    let found = 0;
    try {
      for (;;) {
        if (text) fill(said, `Searching… ${entries(examined)} read, ${count(found)} found. `, button("Stop", () => mine.abort(), { class: "link" }));
        const page = await get(streamPath(key, text ? "search" : "", { ...asked, text }), mine.signal);
        for (const one of page.entries) list.append(entryItem(one));
        found += page.entries.length;
        examined += page.examined ?? 0;
        next = page.next;
        if (!text || next === null || found >= PAGE) break;
        asked[asked.reverse ? "end" : "start"] = next;
      }
      fill(said, text ? `${many(found, "entry", "entries")} found in ${count(examined)} read${next ? "; there may be more" : ""}.`
        : list.childElementCount ? "" : empty("No entries in this range.", "Entries may have been trimmed, or lie outside of it."));
      more.hidden = next === null;
      fill(more, text ? "Search on" : asked.reverse ? "Show older entries" : "Show newer entries");
    } catch (error) {
      if (signal.aborted) return;
      if (mine.signal.aborted) { if (mine === loading) { fill(said, `Stopped: ${entries(examined)} read, ${count(found)} found.`); more.hidden = next === null; } return; }
      fill(said, "");
      problem(error);
    }
  }

  function startTail() {
    loading?.abort();
    following = new AbortController();
    tail.setAttribute("aria-pressed", "true");
    fill(list);
    more.hidden = true;
    fill(said, "Connecting…");
    let seen = 0;
    let waiting = [];
    const flush = () => {
      const shown = waiting.slice(-TAIL).map(entryItem).reverse();
      waiting = [];
      list.prepend(...shown);
      while (list.childElementCount > TAIL) list.lastElementChild.remove();
      fill(said, el("span", { class: "pulse" }), ` Live: ${entries(seen)} since the tail began${seen > TAIL ? `; the newest ${TAIL} are shown` : ""}.`);
    };
    follow(key, {
      signal: following.signal,
      onEntry: (one) => {
        seen += 1;
        if (!waiting.length) requestAnimationFrame(flush);
        waiting.push(one);
        if (waiting.length > 2 * TAIL) waiting = waiting.slice(-TAIL);
      },
      onState: (now, why) => fill(said, now === "live" ? [el("span", { class: "pulse" }), " Live: waiting for entries."]
        : `The connection was lost (${why}). It is made again; no entry is missed.`),
    });
  }

  function stopTail() {
    if (!following) return;
    following.abort();
    following = null;
    tail.setAttribute("aria-pressed", "false");
    fill(said, "");
  }

  // --- changes -----------------------------------------------------------------------------------

  async function createGroup() {
    const name = await ask("Create a group", "It delivers every entry that the stream holds now, and the ones that come.",
      { field: { title: "Name" }, action: "Create" });
    if (name === null) return;
    try { await put(groupPath(key, name), { start: "0" }); notice(`The group ${name} was created.`); } catch (error) { problem(error); }
  }

  function appendForm() {
    const text = el("textarea", { rows: 4, spellcheck: "false", "aria-label": "Fields as JSON" }, '{"field": "value"}');
    return section("Append an entry", { id: "append" },
      el("form", { class: "append", onsubmit: async (event) => {
        event.preventDefault();
        try {
          const { id } = await post(streamPath(key), JSON.parse(text.value));
          notice(`Appended ${id}.`);
          if (!following) load();
        } catch (error) { problem(error instanceof SyntaxError ? new Error(`This is not JSON: ${error.message}`) : error); }
      } }, text, el("button", { class: "primary" }, "Append")));
  }

  load();
}

function showHead(head, info) {
  if (!head.firstChild) head.append(el("p", { class: "crumbs" }, el("a", { href: "#/" }, "Streams")), el("h1", {}, named(info.key)), el("div"));
  const kept = info.retention;
  const limits = [kept.maxlen !== null && `at most ${entries(kept.maxlen)}`, kept.max_age_ms !== null && `at most ${span(kept.max_age_ms)} old`,
    kept.max_bytes !== null && `at most ${size(kept.max_bytes)}`, kept.archive && "trimmed entries are archived",
    kept.keep_unacknowledged && "waits for groups"].filter(Boolean);
  fill(head.lastChild, facts([
    ["Entries", count(info.length)],
    ["Size", size(info.size_bytes), el("span", { class: "quiet" }, ` in ${many(info.nodes, "node")}`)],
    ["Oldest", info.first_id === null ? "–" : time(idMs(info.first_id), info.time_ms)],
    ["Newest", info.last_id === null ? "–" : time(idMs(info.last_id), info.time_ms)],
    ["Added in all", count(info.entries_added)],
    ["Last ID", el("code", {}, info.last_generated_id)],
    info.archive.segments > 0 && ["Archive", entries(info.archive.entries), el("span", { class: "quiet" }, ` in ${many(info.archive.segments, "segment")}, ${size(info.archive.size_bytes)}`)],
    ["Retention", limits.join(", ") || "none: entries stay until a command trims them"],
  ]));
}

const GROUP_COLUMNS = [{ title: "Group", class: "wide" }, { title: "Lag", class: "num" }, { title: "Pending", class: "num" },
  { title: "Oldest pending", class: "num" }, { title: "Consumers", class: "num" }, { title: "Last delivered" }];

function showGroups(parent, info) {
  if (!info.groups.length) {
    fill(parent, empty("No consumer groups.", "A group shares the entries of a stream among its consumers, each entry to one of them."));
    return;
  }
  const { box, body } = table("Consumer groups", GROUP_COLUMNS);
  const [name, lag, pending, oldest, consumers, last] = GROUP_COLUMNS;
  for (const one of info.groups) {
    body.append(el("tr", {},
      cell(name, el("a", { href: `#/group?key=${percent(info.key)}&group=${percent(one.name)}` }, named(one.name))),
      cell(lag, one.lag === null && one.waiting ? el("span", { title: "estimated: entries were deleted, or the group began in the middle" }, `≈ ${count(one.waiting)}`) : count(one.waiting)),
      cell(pending, count(one.pending)),
      cell(oldest, one.oldest_pending === null ? "–" : one.oldest_pending.idle_ms === null ? "to be claimed" : `${span(one.oldest_pending.idle_ms)} ago`),
      cell(consumers, count(one.consumers)),
      cell(last, el("code", {}, one.last_delivered_id))));
  }
  const focused = document.activeElement?.getAttribute?.("href");
  fill(parent, box);
  if (focused) [...parent.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
}

// --- one entry -----------------------------------------------------------------------------------

export function entryItem(entry) {
  const ms = idMs(entry.id);
  return el("li", {},
    el("div", { class: "entry-id" }, isTime(ms) ? el("time", { datetime: new Date(ms).toISOString() }, clock(ms, true)) : null,
      el("code", {}, entry.id)),
    el("dl", { class: "pairs" }, entry.pairs.map(([field, value]) => el("div", {}, el("dt", {}, named(field)), el("dd", {}, valueOf(value))))));
}

function valueOf(value) {
  const text = typeof value === "string" ? value : textOf(value);
  const bytes = typeof value === "string" ? null : bytesOf(value).length;
  const shown = el("span", { class: bytes === null ? "value" : "value binary", dir: "auto" });
  const note = bytes === null ? null : el("span", { class: "quiet" }, ` ${many(bytes, "byte")}`);
  const safe = (part) => part.split("\n").map((line) => textOf(line)).join("\n");
  if (text.length <= CUT) { shown.textContent = safe(text); return [shown, note]; }
  shown.textContent = `${safe(text.slice(0, CUT))}…`;
  const all = button(`show all ${count(text.length)} characters`, () => { shown.textContent = safe(text); all.remove(); }, { class: "link" });
  return [shown, note, " ", all];
}
