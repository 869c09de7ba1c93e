// The queues, and one of them: jobs by state, dead letters, workers, schedules, jobs per minute; with
// --write also cancel, run now, requeue, drop, pause.

import { get, post, query } from "./api.js";
import { bars } from "./charts.js";
import { ago, count, el, fill, many, named, percent, span, textOf, time } from "./dom.js";
import { fieldsBox, pretty, valueOf } from "./entry.js";
import { ask, button, empty, facts, link, missing, notice, problem, repeat, rows, section, segmented } from "./ui.js";

const number = (title, text, warn) => ({ title, class: "num", text, warn });
const QUEUES = [
  { title: "Queue", class: "wide", make: (one) => el("a", { href: link("/queue", { name: one.name }) }, named(one.name)) },
  number("State", (one) => one.paused ? "paused" : one.draining ? "draining" : "open", (one) => one.paused || one.draining),
  number("Waiting", (one) => count(one.waiting)), number("Oldest waits", (one) => one.oldest_ms ? span(one.oldest_ms) : "–"),
  number("Running", (one) => count(one.running)), number("Delayed", (one) => count(one.delayed)),
  number("Parked", (one) => count(one.parked), (one) => one.parked > 0), number("Failed", (one) => count(one.failed), (one) => one.failed > 0),
  number("Done", (one) => count(one.done)), number("Workers", (one) => count(one.workers), (one) => one.waiting > 0 && !one.workers),
];

export function queues(main, state, signal) {
  const list = rows("Queues", QUEUES, { keyOf: (one) => percent(one.name), none: "There are no queues. A program makes one with streamkeep.jobs.Queue." });
  fill(main, el("h1", { class: "hidden" }, "Queues"), section("Queues", { id: "queues" }, list.box));
  repeat(signal, 3, async () => {
    const found = await get("queues", signal);
    if (!signal.aborted) list.show(found.queues, found.time_ms);
  });
}

const JOB = { title: "Job", make: (one) => el("code", {}, textOf(one.id)) };
const CALL = { title: "Call", class: "wide", make: (one) => el("span", { class: "value clamp" }, textOf(one.call)) };
const WAITS = number("Waits for", (one, now) => one.queued_ms ? span(now - one.queued_ms) : "–");
const TOOK = number("Took", (one) => one.begun_ms ? span(one.ended_ms - one.begun_ms) : "–");
const ENDED = number("Ended", (one, now) => ago(one.ended_ms, now));
const ATTEMPTS = number("Attempts", (one) => count(one.attempts));
const worker = (name) => el("span", { title: textOf(name) }, named(name.replace(/-[0-9a-f]{12,}$/, ""))); // host and process
const WORKER = { title: "Worker", make: (one) => worker(one.worker) };
const KEPT = "Jobs that have ended are listed as long as their results are kept.";
const STATES = { // title, what is counted, columns, what is said of none
  waiting: ["Waiting", "waiting", [JOB, CALL, WAITS], "No job waits."],
  running: ["Running", "running", [JOB, CALL, WORKER, number("For", (one, now) => span(now - one.begun_ms)), number("Attempt", ATTEMPTS.text)], "No job is running."],
  delayed: ["Delayed", "delayed", [JOB, CALL, { title: "Why", text: (one) => one.retries ? `retry after ${many(one.attempts, "attempt")}` : "put for later" },
    number("Due in", (one, now) => one.due_ms > now ? span(one.due_ms - now) : "now")], "No job is delayed."],
  parked: ["Parked", "parked", [JOB, CALL, WAITS], "No job is parked: workers know the task of each that they took."],
  done: ["Done", "done", [JOB, CALL, TOOK, ENDED, ATTEMPTS, WORKER], KEPT],
  failed: ["Failed", "buried", [JOB, CALL, TOOK, ENDED, ATTEMPTS, WORKER], KEPT],
  cancelled: ["Cancelled", "cancelled", [JOB, CALL, ENDED], KEPT],
  dead: ["Dead letters", "failed", [JOB, CALL, { title: "Reason", class: "wide", make: (one) => [el("p", {}, textOf(one.message || one.reason)),
    el("p", { class: "quiet" }, [one.error, one.reason].filter(Boolean).map(textOf).join(": "))] }, ATTEMPTS,
  number("Given up", (one, now) => ago(one.ended_ms, now))], "No dead letter is like this, as far as was read."],
};
const MOST = 500; // that one request returns
const FILTERS = [["task", "Task", "any task"], ["reason", "Reason", "in reason, error or message"], ["start", "From", "oldest, or -2h"], ["end", "To", "newest"]];

export function queue(main, state, signal, address) {
  const name = address.name;
  const at = (rest) => `queues/${percent(name)}/${rest}`;
  const here = (members) => link("/queue", { name, ...members });
  const head = el("div"), jobs = el("div"), reasons = el("div", { class: "title" }), chart = el("div", { class: "chart low" });
  const tabs = el("div", { class: "segmented", role: "group", "aria-label": "State of the jobs" });
  const form = filterForm();
  const pause = state.write ? button("Pause", () => act(paused ? "resume" : "pause")) : null;
  const bulk = state.write ? [button("Requeue all…", () => all("requeue")), button("Drop all…", () => all("drop"))] : [];
  const more = button("Show more", () => {
    if (further === null) { wanted += 50; again(); } else location.hash = here({ ...filter, state: "dead", end: further });
  }, { hidden: true });
  const workers = rows("Workers", [
    { title: "Worker", make: (one) => worker(one.name) }, { title: "Host", text: (one) => textOf(one.host) }, number("Process", (one) => String(one.process || "–")),
    number("Since", (one, now) => one.since_ms ? ago(one.since_ms, now) : "–"),
    { title: "Runs", class: "wide", text: (one, now) => one.runs.map((job) => `${textOf(job.call)} for ${span(now - job.begun_ms)}`).join("; ")
      + (one.jobs > one.runs.length ? ` and ${count(one.jobs - one.runs.length)} more` : "") || "nothing" },
  ], { keyOf: (one) => percent(one.name), none: "No worker is running." });
  const schedules = rows("Schedules", [
    { title: "Name", make: (one) => named(one.name) }, { title: "Task", make: (one) => named(one.task) }, { title: "Cron", text: (one) => `${textOf(one.cron)} (${textOf(one.zone)})` },
    number("Last", (one, now) => one.last_ms ? ago(one.last_ms, now) : "never"), number("Next", (one, now) => one.next_ms > now ? ago(one.next_ms, now) : "when a worker runs"),
    number("Parked", (one) => one.parked ? `${many(one.parked, "job")}: no worker has the task` : "–", (one) => one.parked > 0),
    ...(state.write ? [{ title: "Actions", class: "actions", make: (one) => button("Remove", () => unschedule(one.name)) }] : []),
  ], { keyOf: (one) => percent(one.name), none: "No task is periodic." });
  let paused = false, shown = "", list = null, wanted = 50, further = null, filter = {}, minutes = 60;

  fill(main, el("div", { class: "title" }, el("p", { class: "crumbs" }, el("a", { href: "#/queues" }, "Queues")),
    el("h1", {}, el("span", { class: "of" }, "Queue "), named(name)), head),
  section("Ends per minute", { id: "minutes", tools: segmented("Time that the chart shows", [["1 hour", 60], ["1 day", 1440]], (value) => { minutes = value; activity(); }) }, chart),
  section("Jobs", { id: "jobs", tools: [pause] }, tabs, form.box, reasons, jobs, more),
  section("Workers", { id: "workers" }, workers.box), section("Schedules", { id: "schedules" }, schedules.box));

  function filterForm() {
    const inputs = FILTERS.map(([member, , hint]) => el("input", { name: member, placeholder: hint, autocomplete: "off", spellcheck: "false", id: member === "reason" ? "filter" : null }));
    const box = el("form", { class: "range letters", hidden: true, onsubmit: (event) => {
      event.preventDefault();
      location.hash = here({ state: "dead", ...Object.fromEntries(inputs.map((one) => [one.name, one.value.trim()])) });
    } }, inputs.map((one, index) => el("label", { class: index === 1 ? "grow" : null }, FILTERS[index][1], one)),
    el("div", { class: "tools" }, el("button", { class: "primary" }, "Show"), el("a", { href: here({ state: "dead" }) }, "All")));
    return { box, set: () => { for (const one of inputs) one.value = filter[one.name] ?? ""; } };
  }

  // --- what the address names --------------------------------------------------------------------

  function moved(to) {
    shown = STATES[to.state] ? to.state : "waiting";
    wanted = 50;
    filter = Object.fromEntries(FILTERS.map(([member]) => [member, to[member]]).filter(([, value]) => value));
    form.set();
    form.box.hidden = shown !== "dead";
    for (const one of tabs.children) {
      if (one.dataset.kind === shown) one.setAttribute("aria-current", "page"); else one.removeAttribute("aria-current");
    }
    const [title, , columns, none] = STATES[shown];
    const acts = state.write && ["waiting", "delayed", "parked", "dead"].includes(shown);
    list = rows(title, acts ? [...columns, { title: "Actions", class: "actions", make: actions }] : columns,
      { keyOf: (one) => one.letter ?? one.id, none: shown !== "dead" || Object.keys(filter).length ? none : "There are no dead letters.", detail });
    fill(reasons);
    fill(jobs);
    again?.();
  }

  for (const kind of Object.keys(STATES)) {
    const one = el("a", { href: here({ state: kind }) }, STATES[kind][0]);
    one.dataset.kind = kind;
    tabs.append(one);
  }

  async function refresh() {
    const kind = shown, into = list;
    const found = await get(kind === "dead" ? at(`letters?${query({ ...filter, count: wanted })}`) : at(`jobs?${query({ state: kind, count: wanted })}`), signal);
    if (signal.aborted || into !== list) return;
    const stats = found.stats;
    paused = stats.paused;
    if (pause) fill(pause, paused ? "Resume" : "Pause");
    fill(head, facts([
      ["Waiting", count(stats.waiting), stats.oldest_ms > 0 && el("span", { class: "quiet" }, `, the oldest for ${span(stats.oldest_ms)}`)],
      ["Delayed", count(stats.delayed), stats.retrying > 0 && el("span", { class: "quiet" }, `, ${count(stats.retrying)} to be retried`)],
      ["Failed attempts", count(stats.failed_attempts)],
      ["Workers", count(stats.workers), stats.waiting > 0 && stats.workers === 0 && el("span", { class: "warn" }, " none is running")],
      Object.keys(stats.unknown_tasks).length > 0 && ["Parked", el("span", { class: "warn" },
        `no worker has ${Object.entries(stats.unknown_tasks).map(([task, jobs]) => `${textOf(task)} (${many(jobs, "job")})`).join(", ")}`)],
      (paused || stats.draining) && ["State", el("span", { class: "warn" }, paused ? "paused" : "draining")]]));
    for (const one of tabs.children) fill(one, `${STATES[one.dataset.kind][0]} ${count(stats[STATES[one.dataset.kind][1]])}`);
    if (!jobs.firstChild) {
      if (kind === "dead") await countReasons(); // first, since it moves what is below
      if (signal.aborted || into !== list) return;
      fill(jobs, list.box);
    }
    list.show(found.jobs ?? found.letters, found.time_ms);
    // A search that read for half a second goes on from where it came to, and so does a full list.
    const ends = kind === "dead" ? found.next === null : found.jobs.length < wanted || wanted >= MOST;
    further = kind === "dead" && (found.letters.length < wanted || wanted >= MOST) ? found.next : null;
    more.hidden = ends;
    fill(more, further === null ? "Show more" : "Show older ones");
    if (kind !== "dead") fill(reasons);
  }

  async function activity() {
    const [found, rules] = await Promise.all([get(at(`activity?minutes=${minutes}`), signal), get(at("schedules"), signal)]);
    if (signal.aborted) return;
    workers.show(found.workers, found.time_ms);
    schedules.show(rules.schedules, rules.time_ms);
    const step = minutes === 60 ? 1 : 20, first = Math.floor(found.time_ms / 60000) + 1 - minutes;
    const edges = Array.from({ length: minutes / step + 1 }, (_, index) => 60000 * (first + index * step));
    const sums = [1, 2].map((member) => edges.slice(1).map((edge, index) =>
      found.minutes.reduce((sum, one) => sum + (one[0] >= edges[index] && one[0] < edge ? one[member] : 0), 0)));
    fill(chart, sums.flat().some(Boolean) ? [bars(edges, [["live", "done", sums[0]], ["erased", "failed attempts", sums[1]]], { label: "Ends of jobs over time" }),
      el("p", { class: "legend quiet" }, el("span", { class: "key live" }), " done ", el("span", { class: "key erased" }), " failed attempts")] : empty("No job ended in this time."));
  }

  // --- one job -----------------------------------------------------------------------------------

  async function detail(row) {
    const found = { ...row, ...await get(at(`job?${query(row.letter ? { letter: row.letter } : { job: row.id })}`), signal) };
    const moments = [[found.queued_ms, "put"], [found.begun_ms, `attempt ${count(found.attempts)} began`, found.worker],
      [found.ended_ms, { done: "done", cancelled: "cancelled" }[found.state] ?? "given up"], [row.due_ms, "due"],
      ...found.history.map((run) => [run.begun_ms || run.ended_ms, `ran ${run.begun_ms ? `for ${span(run.ended_ms - run.begun_ms)}` : ""}`, run.worker, run.error])]
      .filter(([ms]) => ms > 0).sort((one, other) => one[0] - other[0]);
    return [el("pre", { class: "value call" }, textOf(found.call)),
      el("ul", { class: "history", "aria-label": "History" }, moments.map(([ms, what, who, error]) => el("li", {}, time(ms, null, true), ` ${what}`, who && [" on ", worker(who)], error && [": ", textOf(error)])),
        found.history.length >= 10 && el("li", { class: "quiet" }, "Of the runs that did not end it, the last ten are kept."),
        found.deaths > 0 && el("li", {}, `${many(found.deaths, "worker")} died while running it.`)),
      (found.message || found.error) && el("p", { class: "warn" }, [found.error, found.message].filter(Boolean).map(textOf).join(": ")),
      found.reason && el("p", { class: "quiet" }, textOf(found.reason)),
      found.traceback && el("pre", { class: "value traceback" }, found.traceback.split("\n").map(textOf).join("\n")),
      found.result && el("div", {}, el("h3", {}, "Result"), valueOf(pretty(found.result) ?? found.result)),
      found.entry && el("p", {}, el("a", { href: link("/stream", { key: found.entry.key, start: found.entry.id, end: found.entry.id }) }, "Its entry in ", named(found.entry.key))),
      found.pairs.length > 0 && (found.letter || !["done", "failed", "cancelled"].includes(found.state)) && fieldsBox(found.pairs.filter(([field]) => !["traceback", "history"].includes(field)))];
  }

  function actions(one) {
    if (shown === "dead") return button("Requeue", () => change("requeue", one.letter, `${one.id} was put again`));
    return [shown === "delayed" && button("Run now", () => change("run", one.id, `${one.id} will start`)),
      !one.retries && button("Cancel", () => cancel(one.id))];
  }

  async function cancel(id) {
    if (await ask("Cancel this job?", `${id} will not run.`, { action: "Cancel the job", danger: true }) === null) return;
    change("cancel", id, `${id} was cancelled`);
  }

  async function unschedule(rule) {
    const text = `No more jobs of it are put. A program that still has ${textOf(rule)} stores it again when it starts.`;
    if (await ask("Remove this schedule?", text, { action: "Remove", danger: true }) === null) return;
    try { await post(at("unschedule"), { ids: [rule] }); activity().catch(problem); } catch (error) { problem(error); }
  }

  async function change(action, id, told) {
    try {
      const { done } = await post(at(action), { ids: [id] });
      if (done.length) notice(`${told}.`); else notice(`${id} is no longer ${shown}, or its unique name is taken.`, "failed");
      changed();
    } catch (error) { problem(error); }
  }

  async function act(action) {
    try { await post(at(action)); again(); } catch (error) { problem(error); }
  }

  function changed() {
    if (shown === "dead") countReasons();
    again();
    activity().catch(problem);
  }

  // --- many dead letters -------------------------------------------------------------------------

  const counted = () => get(at(`letters?${query({ ...filter, reasons: 1 })}`), signal);
  const letters = (found) => `${found.complete ? "" : "at least "}${many(found.count, "dead letter")}`;

  async function countReasons() {
    const kind = list;
    try {
      const found = await counted();
      if (signal.aborted || kind !== list || shown !== "dead") return;
      const table = rows("Dead letters by reason", [
        { title: "Reason", class: "wide", make: (one) => [el("a", { href: here({ ...filter, state: "dead", task: one.task, reason: one.reason }) }, named(one.reason)), el("p", { class: "quiet clamp" }, textOf(one.message))] },
        { title: "Task", make: (one) => one.task ? named(one.task) : "–" }, number("Letters", (one) => count(one.count)),
        number("First", (one, now) => ago(one.first_ms, now)), number("Last", (one, now) => ago(one.last_ms, now))],
      { keyOf: (one) => `${one.task} ${one.reason}`, none: "There are no dead letters." });
      fill(reasons, found.count > 0 && [el("div", { class: "section-head" }, el("p", {}, `${letters(found)}${Object.keys(filter).length ? " like this" : ""}.`), el("div", { class: "tools" }, bulk)), table.box]);
      table.show(found.reasons, found.time_ms);
    } catch (error) { if (!signal.aborted) problem(error); }
  }

  async function all(action) {
    const requeues = action === "requeue";
    try {
      const found = await counted();
      const which = [filter.task && `of the task ${filter.task}`, filter.reason && `with “${filter.reason}”`, filter.start && `from ${filter.start}`, filter.end && `to ${filter.end}`].filter(Boolean).join(" ");
      const title = `${requeues ? "Requeue" : "Drop"} ${letters(found)}?`;
      const what = requeues ? "Each waits again, with its ID and all its attempts, and leaves the dead letters. One whose unique name is taken stays." : "They are removed for good, with their payloads. This cannot be undone.";
      if (await ask(title, `${which ? `Those ${which}. ` : ""}${what} Letters that come from now on are not touched.`, { action: requeues ? "Requeue" : "Drop", danger: !requeues }) === null) return;
      const asked = { ...filter, end: filter.end ?? String(found.time_ms) };
      let done = 0, next = filter.start;
      do {
        const reply = await post(at(action), { ...asked, ...(next && { start: next }) });
        done += reply.count;
        next = reply.next;
        notice(`${many(done, "dead letter")} ${requeues ? "put again" : "dropped"}.`);
      } while (next !== null && !signal.aborted);
      changed();
    } catch (error) { problem(error); }
  }

  let again = null;
  moved(address);
  again = repeat(signal, 3, refresh, () => missing(main, "queue", name, "#/queues", "All queues"));
  repeat(signal, 6, activity, () => {});
  return moved;
}
