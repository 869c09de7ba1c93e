// One stream: its entries over time, a range of them, a search, a live tail, and its groups.

import { follow, get, post, put, streamPath, groupPath } from "./api.js";
import { bars } from "./charts.js";
import { clock, count, el, entries, fill, idMs, isTime, many, named, percent, size, span, textOf, time } from "./dom.js";
import { csvOf, entryItem, fieldsBox, linesOf, plain, save, when } from "./entry.js";
import { ask, button, command, empty, facts, link, missing, notice, problem, repeat, rows, section, segmented } from "./ui.js";

const PAGE = 50;
const TAIL = 500; // entries that a live tail keeps on the page
const COLUMNS = 6; // of a table, until others are chosen
const MOST_SAVED = 100000; // entries of a file

export function stream(main, state, signal, address) {
  const key = address.key;
  const head = el("div", { class: "title" });
  const figures = el("div", { class: "chart" });
  const ranges = segmented("Time that the chart shows", [["All", null], ["1 week", 604800e3], ["1 day", 86400e3], ["1 hour", 3600e3], ["5 min", 300e3]], (ms) => {
    window = ms && { start_ms: Date.now() - ms, end_ms: Date.now() };
    chart();
  });
  const groups = rows("Consumer groups", GROUPS, { keyOf: (one) => percent(one.name),
    none: () => empty("No consumer groups.", "A group shares the entries of a stream among its consumers, each entry to one of them.") });
  const list = el("ol", { class: "entries", "aria-label": "Entries" });
  const grid = el("div"), choice = el("div", { class: "tools columns-choice" });
  const views = el("div", { class: "segmented", role: "group", "aria-label": "How entries are shown" },
    [["Cards", ""], ["Table", "table"]].map(([title, view]) => button(title, () => go({ view }), { "data-view": view })));
  const said = el("p", { class: "quiet", role: "status" });
  const more = button("Show more", () => load(true));
  const form = rangeForm();
  const tail = button("Live tail", () => (following ? stopTail() : startTail()), { "aria-pressed": "false", class: "toggle" });
  let next = null;
  let following = null;
  let loading = null;
  let window = null;
  let here = {}; // the members of the address: range, search, view, columns
  let loaded = [];

  fill(main, head,
    section("Over time", { id: "time", tools: ranges }, figures),
    section("Entries", { id: "entries", tools: [tail, views, button("CSV", () => download("csv"), { title: "Download as CSV" }),
      button("JSON Lines", () => download("jsonl"), { title: "Download as JSON Lines" })] }, form.box, said, choice, list, grid, more),
    section("Consumer groups", { id: "groups", tools: state.write ? button("Create a group", createGroup) : null }, groups.box),
    state.write ? appendForm() : null);
  signal.addEventListener("abort", () => { loading?.abort(); following?.abort(); });

  // --- facts and groups --------------------------------------------------------------------------

  repeat(signal, 5, async () => {
    const info = await get(streamPath(key, "info"), signal);
    if (signal.aborted) return;
    showHead(head, info);
    groups.show(info.groups.map((one) => ({ ...one, key: info.key })), info.time_ms);
  }, () => missing(main, "stream", key, "#/", "All streams"));

  // --- the chart ---------------------------------------------------------------------------------

  async function chart() {
    try {
      const found = await get(streamPath(key, "figures", { buckets: 80, ...window }), signal);
      if (signal.aborted) return;
      const total = [...found.live, ...found.trimmed, ...found.archived, ...found.erased].some(Boolean);
      const at = (ms) => isTime(ms) ? `${clock(ms, true).replace(" ", "T")}Z` : String(ms);
      fill(figures, total ? bars(found.edges_ms, [["live", "live", found.live], ["trimmed", "trimmed", found.trimmed], ["archived", "archived", found.archived], ["erased", "erased", found.erased]], {
        label: "Entries over time; each bar shows its part of the stream", about: found.exact ? "" : "about ",
        onPick: (from, to) => go({ start: at(from), end: at(to) }) }) : empty("No entries in this time."),
      total && el("p", { class: "legend quiet" },
        el("span", { class: "key live" }), " live ",
        found.trimmed_entries > 0 && [el("span", { class: "key trimmed" }), ` trimmed, to be archived (${count(found.trimmed_entries)}) `],
        found.archived_entries > 0 && [el("span", { class: "key archived" }), ` archived (${count(found.archived_entries)}) `],
        found.erased_entries > 0 && [el("span", { class: "key erased" }), ` erased from the archive (${count(found.erased_entries)}) `],
        "· ", !found.exact && "Estimated from the index, without reading the entries. ",
        "A bar shows its entries below."));
    } catch (error) { if (!signal.aborted && error.status !== 404) problem(error); }
  }

  chart();

  // --- entries -----------------------------------------------------------------------------------

  function rangeForm() {
    const from = el("input", { name: "from", placeholder: "oldest, or -2h", autocomplete: "off", spellcheck: "false" });
    const to = el("input", { name: "to", placeholder: "newest", autocomplete: "off", spellcheck: "false" });
    const text = el("input", { type: "search", name: "text", placeholder: "in fields and values", id: "filter", autocomplete: "off", spellcheck: "false" });
    const order = el("select", { name: "order" }, el("option", { value: "1" }, "newest first"), el("option", { value: "" }, "oldest first"));
    const history = el("input", { type: "checkbox", name: "history" });
    const given = () => ({ start: from.value.trim(), end: to.value.trim(), text: text.value, oldest: !order.value, history: history.checked });
    const box = el("form", { class: "range", onsubmit: (event) => { event.preventDefault(); go(given()); } },
      el("label", {}, "From", from), el("label", {}, "To", to), el("label", { class: "grow" }, "Search", text),
      el("label", {}, "Order", order), el("label", { class: "check" }, history, "with archive"),
      el("div", { class: "tools" }, el("button", { class: "primary" }, "Show"),
        button("Reset", () => go({ start: "", end: "", text: "", oldest: false, history: false }))));
    order.addEventListener("change", () => go(given()));
    history.addEventListener("change", () => go(given()));
    const show = () => {
      [from.value, to.value, text.value] = ["start", "end", "text"].map((one) => here[one] ? textOf(here[one]) : "");
      order.value = here.oldest ? "" : "1";
      history.checked = Boolean(here.history);
    };
    return { box, show };
  }

  // Go to an address that differs in these members, or read again if none differs.
  function go(members) {
    const to = link("/stream", { key, ...here, ...members });
    if (to === location.hash) load(); else location.hash = to;
  }

  function moved({ path, key: same, ...members }) {
    const asks = ({ view, cols, ...rest }) => JSON.stringify(rest);
    const reads = following || !loaded.length || asks(here) !== asks(members);
    here = members;
    form.show();
    for (const one of views.children) one.setAttribute("aria-pressed", one.dataset.view === (here.view ?? ""));
    if (reads) load(); else showAll();
  }

  // --- cards, or a table of chosen columns -------------------------------------------------------

  function columnsOf() {
    const known = [...new Set(loaded.flatMap((one) => one.pairs.map(([field]) => plain(field))))];
    const chosen = here.cols === undefined ? known.slice(0, COLUMNS) : String(here.cols).split(",").map(decodeURIComponent);
    return [known, chosen];
  }

  function showAll(added = loaded) {
    const asTable = here.view === "table";
    if (added === loaded) fill(list);
    const focused = [...choice.children].indexOf(document.activeElement);
    fill(choice);
    fill(grid);
    if (!asTable) { list.append(...added.map(entryItem)); return; }
    const [known, chosen] = columnsOf();
    const toggle = (name) => go({ cols: (chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]).map(encodeURIComponent).join(",") || "," });
    fill(choice, known.slice(0, 50).map((name) => button(named(name), () => toggle(name), { class: "toggle", "aria-pressed": String(chosen.includes(name)) })));
    choice.children[focused]?.focus();
    const cellOf = (name) => (one) => {
      const found = one.pairs.find(([field]) => plain(field) === name);
      return found === undefined ? el("span", { class: "quiet" }, "–") : el("span", { class: "value clamp" }, plain(found[1]).slice(0, 300).replace(/\s+/g, " "));
    };
    const made = rows("Entries", [{ title: "Entry", class: "id-cell", make: (one) => when(one.id) }, ...chosen.filter(Boolean).map((name) => ({ title: textOf(name), make: cellOf(name) }))],
      { keyOf: (one) => one.id, none: "", detail: async (one) => fieldsBox(one.pairs) });
    fill(grid, made.box);
    made.show(loaded, 0);
  }

  const asking = () => {
    const { start, end, text, oldest, history } = here;
    return { start, end, text, history, reverse: !oldest, shape: "pairs" };
  };

  // Yield the pages of the range that the address names.
  async function* pages(asked, signalOf) {
    for (;;) {
      const page = await get(streamPath(key, asked.text ? "search" : "", asked), signalOf);
      yield page;
      if (page.next === null) return;
      asked[asked.reverse ? "end" : "start"] = page.next;
    }
  }

  async function download(kind) {
    const mine = new AbortController();
    const found = [];
    let complete = true;
    try {
      for await (const page of pages({ ...asking(), count: 1000 }, mine.signal)) {
        found.push(...page.entries);
        notice([`${entries(found.length)} read… `, button("Stop", () => mine.abort(), { class: "link" })], "busy");
        if (found.length >= MOST_SAVED && page.next !== null) { complete = false; break; }
      }
    } catch (error) {
      if (!mine.signal.aborted) { problem(error); return; }
      complete = false;
    }
    const names = here.view === "table" && here.cols !== undefined ? columnsOf()[1].filter(Boolean)
      : [...new Set(found.flatMap((one) => one.pairs.map(([field]) => plain(field))))];
    save(kind === "csv" ? csvOf(found, names) : linesOf(found), `${textOf(key).replace(/[^\w.-]+/g, "-").slice(0, 60) || "stream"}.${kind}`, kind === "csv" ? "text/csv" : "application/x-ndjson");
    notice(complete ? `${entries(found.length)} saved.` : [`The first ${entries(found.length)} were saved. `, command("streamkeep dump STORE KEY"), " writes all."]);
  }

  async function load(further = false) {
    stopTail();
    loading?.abort();
    const mine = loading = new AbortController();
    const asked = { ...asking(), count: PAGE };
    const { text } = asked;
    if (further && next) asked[asked.reverse ? "end" : "start"] = next;
    if (!further) { loaded = []; fill(list); fill(grid); }
    more.hidden = true;
    let examined = 0;
    let found = 0;
    try {
      if (text) fill(said, "Searching…");
      for await (const page of pages(asked, mine.signal)) {
        loaded.push(...page.entries);
        showAll(page.entries);
        found += page.entries.length;
        examined += page.examined ?? 0;
        next = page.next;
        if (!text || found >= PAGE) break;
        fill(said, `Searching… ${entries(examined)} read, ${count(found)} found. `, button("Stop", () => mine.abort(), { class: "link" }));
      }
      fill(said, text ? `${many(found, "entry", "entries")} found in ${count(examined)} read${next ? "; there may be more" : ""}.`
        : loaded.length ? "" : empty("No entries in this range.", "Entries may have been trimmed, or lie outside of it."));
      more.hidden = next === null;
      fill(more, text ? "Search on" : asked.reverse ? "Show older entries" : "Show newer entries");
    } catch (error) {
      if (signal.aborted) return;
      if (mine.signal.aborted) { if (mine === loading) { fill(said, `Stopped: ${entries(examined)} read, ${count(found)} found.`); more.hidden = next === null; } return; }
      fill(said, "");
      if (error.status !== 404) problem(error);
    }
  }

  function startTail() {
    loading?.abort();
    loading = null;
    following = new AbortController();
    tail.setAttribute("aria-pressed", "true");
    for (const one of [list, grid, choice]) fill(one);
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

  moved(address);
  return moved;
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

const GROUPS = [
  { title: "Group", class: "wide", make: (one) => el("a", { href: `#/group?key=${percent(one.key)}&group=${percent(one.name)}` }, named(one.name)) },
  { title: "Lag", class: "num", text: (one) => (one.lag === null && one.waiting ? "≈ " : "") + count(one.waiting),
    tip: (one) => one.lag === null && one.waiting ? "estimated: entries were deleted, or the group began in the middle" : "" },
  { title: "Pending", class: "num", text: (one) => count(one.pending) },
  { title: "Oldest pending", class: "num", text: (one) => one.oldest_pending === null ? "–" : one.oldest_pending.idle_ms === null ? "to be claimed" : `${span(one.oldest_pending.idle_ms)} ago` },
  { title: "Consumers", class: "num", text: (one) => count(one.consumers) },
  { title: "Last delivered", show: (one) => el("code", {}, one.last_delivered_id) },
];
