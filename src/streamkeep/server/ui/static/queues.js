// The queues, and one of them: its jobs by state; with --write also cancel, requeue and pause.

import { get, post, query } from "./api.js";
import { count, el, fill, keyed, many, named, percent, setText, span, textOf } from "./dom.js";
import { ask, button, cell, empty, facts, notice, problem, repeat, section, table } from "./ui.js";

const COLUMNS = [{ title: "Queue", class: "wide" }, { title: "Waiting", class: "num" }, { title: "Oldest waits", class: "num" },
  { title: "Running", class: "num" }, { title: "Delayed", class: "num" }, { title: "Dead", class: "num" }, { title: "Done", class: "num" }, { title: "Workers", class: "num" }];

export function queues(main, state, signal) {
  const { box, body, table: list } = table("Queues", COLUMNS);
  const none = el("div");
  fill(main, el("h1", { class: "hidden" }, "Queues"), section("Queues", { id: "queues" }, box, none));
  repeat(signal, 3, async () => {
    const found = await get("queues", signal);
    if (signal.aborted) return;
    list.hidden = !found.queues.length;
    fill(none, found.queues.length ? null : empty("There are no queues.", "A program makes one with streamkeep.jobs.Queue."));
    keyed(body, found.queues, (one) => percent(one.name), (one) => {
      const cells = COLUMNS.map((column) => cell(column));
      cells[0].append(el("a", { href: `#/queue?name=${percent(one.name)}` }, named(one.name)));
      const made = el("tr", {}, cells);
      const badge = el("span", { class: "badge" });
      cells[0].append(" ", badge);
      made.refresh = (now) => {
        setText(badge, now.paused ? "paused" : now.draining ? "draining" : "");
        const idle = now.waiting > 0 && now.workers === 0;
        [count(now.waiting), now.oldest_ms ? span(now.oldest_ms) : "–", count(now.running), count(now.delayed), count(now.dead), count(now.done), count(now.workers)]
          .forEach((text, at) => setText(cells[at + 1], text));
        cells[5].classList.toggle("warn", now.dead > 0);
        cells[7].classList.toggle("warn", idle);
      };
      return made;
    });
  });
}

const STATES = {
  waiting: ["Waiting", [["Job"], ["Task"], ["Payload", "wide"], ["Waits for", "num"]]],
  running: ["Running", [["Job"], ["Task"], ["Payload", "wide"], ["Worker"], ["For", "num"], ["Attempt", "num"]]],
  delayed: ["Delayed", [["Job"], ["Task"], ["Payload", "wide"], ["Why"], ["Due in", "num"]]],
  dead: ["Dead", [["Job"], ["Task"], ["Reason", "wide"], ["Attempts", "num"], ["Given up", "num"]]],
};

export function queue(main, state, signal, address) {
  const name = address.name;
  const head = el("div");
  const tabs = el("div", { class: "segmented", role: "group", "aria-label": "State of the jobs" });
  const jobs = el("div");
  const pause = state.write ? button("Pause", () => act(paused ? "resume" : "pause")) : null;
  let paused = false;
  let shown = STATES[address.state] ? address.state : "waiting";
  let list = null;
  let wanted = 50;
  const more = button("Show more", () => { wanted += 50; again(); }, { hidden: true });
  fill(main, el("div", { class: "title" }, el("p", { class: "crumbs" }, el("a", { href: "#/queues" }, "Queues")),
    el("h1", {}, el("span", { class: "of" }, "Queue "), named(name)), head),
  section("Jobs", { id: "jobs", tools: [tabs, pause] }, jobs, more));
  for (const [kind, [title]] of Object.entries(STATES)) {
    const one = button(title, () => choose(kind));
    one.dataset.kind = kind;
    tabs.append(one);
  }

  const columnsOf = (kind) => [...STATES[kind][1], ...(state.write && kind !== "running" ? [["Actions", "actions"]] : [])]
    .map(([title, className]) => ({ title, class: className }));

  function choose(kind) {
    shown = kind;
    wanted = 50;
    for (const one of tabs.children) one.setAttribute("aria-pressed", String(one.dataset.kind === kind));
    const columns = columnsOf(kind);
    list = { columns, ...table(STATES[kind][0], columns), none: el("div") };
    list.table.hidden = true;
    fill(jobs, list.box, list.none);
    again?.();
  }

  async function refresh() {
    const kind = shown;
    const found = await get(`queues/${percent(name)}/jobs?${query({ state: kind, count: wanted })}`, signal);
    if (signal.aborted || kind !== shown) return;
    const stats = found.stats;
    paused = stats.paused;
    if (pause) setText(pause, paused ? "Resume" : "Pause");
    fill(head, facts([
      ["Waiting", count(stats.waiting), stats.oldest_ms > 0 && el("span", { class: "quiet" }, `, the oldest for ${span(stats.oldest_ms)}`)],
      ["Running", count(stats.running)], ["Delayed", count(stats.delayed), stats.retrying > 0 && el("span", { class: "quiet" }, `, ${count(stats.retrying)} to be retried`)],
      ["Dead", count(stats.dead)], ["Done", count(stats.done)], ["Failed attempts", count(stats.failed)], ["Cancelled", count(stats.cancelled)],
      ["Workers", count(stats.workers), stats.waiting > 0 && stats.workers === 0 && el("span", { class: "warn" }, " none is running")],
      Object.keys(stats.unknown_tasks).length > 0 && ["Unknown tasks", el("span", { class: "warn" },
        `no worker has ${Object.entries(stats.unknown_tasks).map(([task, jobs]) => `${task} (${many(jobs, "job")})`).join(", ")}`)],
      (paused || stats.draining) && ["State", el("span", { class: "warn" }, paused ? "paused" : "draining")]]));
    for (const one of tabs.children) setText(one, `${STATES[one.dataset.kind][0]} ${count(stats[one.dataset.kind])}`);
    list.table.hidden = !found.jobs.length;
    fill(list.none, found.jobs.length ? null : empty(NONE[kind]));
    more.hidden = found.jobs.length < wanted;
    keyed(list.body, found.jobs, (one) => one.letter ?? one.id, (one) => row(kind, one));
    list.body.childNodes.forEach((one, at) => one.refresh(found.jobs[at], found.time_ms));
  }

  function row(kind, first) {
    const cells = list.columns.map((column) => cell(column));
    const made = el("tr", {}, cells);
    cells[0].append(el("code", {}, textOf(first.id)));
    cells[1].append(first.task === null ? el("span", { class: "quiet" }, "–") : named(first.task));
    if (kind === "dead") {
      cells[2].append(el("p", {}, textOf(first.message || first.reason)),
        el("p", { class: "quiet" }, [textOf(first.error), textOf(first.reason)].filter(Boolean).join(": ")));
    } else cells[2].append(el("span", { class: "value clamp", title: many(first.payload_bytes, "byte") }, textOf(first.payload)));
    if (kind === "running") cells[3].append(named(first.worker));
    if (kind === "delayed") cells[3].append(first.retry ? "retry" : "put for later");
    if (state.write) {
      const actions = cells.at(-1);
      if (kind === "delayed") actions.append(button("Run now", () => change("run", first.id, "will start")));
      if (kind === "dead") actions.append(button("Requeue", () => change("requeue", first.letter, "was put again, as a new job")));
      if (kind === "waiting" || (kind === "delayed" && !first.retry)) actions.append(button("Cancel", () => cancel(first.id)));
    }
    made.refresh = (one, now) => {
      if (now === undefined) return;
      if (kind === "waiting") setText(cells[3], span(now - one.since_ms));
      if (kind === "running") { setText(cells[4], span(one.running_ms)); setText(cells[5], count(one.times_delivered)); }
      if (kind === "delayed") setText(cells[4], one.due_ms > now ? span(one.due_ms - now) : "now");
      if (kind === "dead") { setText(cells[3], textOf(one.attempts)); setText(cells[4], `${span(now - one.died_ms)} ago`); }
    };
    return made;
  }

  async function cancel(id) {
    if (await ask("Cancel this job?", `${id} will not run.`, { action: "Cancel the job", danger: true }) === null) return;
    change("cancel", id, "was cancelled");
  }

  async function change(action, id, told) {
    try {
      const { done } = await post(`queues/${percent(name)}/${action}`, { ids: [id] });
      if (done.length) notice(`${id} ${told}.`);
      else notice(`${id} is no longer ${shown}.`, "failed");
      again();
    } catch (error) { problem(error); }
  }

  async function act(action) {
    try { await post(`queues/${percent(name)}/${action}`); again(); } catch (error) { problem(error); }
  }

  let again = null;
  choose(shown);
  again = repeat(signal, 3, refresh);
}

const NONE = { waiting: "No job waits.", running: "No job is running.", delayed: "No job is delayed.", dead: "There are no dead letters." };
