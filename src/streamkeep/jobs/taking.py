"""How a worker takes jobs: what is due, what dead workers left, then new entries by priority.

Everything that one call takes is one transaction. The schedule is worked off by whichever worker
takes next, a bounded number of rows at a time, so that a million jobs that are due at once hold no
other writer for long.

All functions here run in a transaction, and see `Step`; `due_in` reads a snapshot.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.commands.reply_budget import ReplyBudget
from streamkeep.engine.commands.xreadgroup import NEW, Delivery, Position, xreadgroup
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.node.node import PAIRS
from streamkeep.jobs import layout
from streamkeep.jobs.admission import admit, missed_gates, priority_of
from streamkeep.jobs.ending import begin_run, fail_attempt, refuse
from streamkeep.jobs.options import DEFAULT_RESULT_TTL_MS, Policy
from streamkeep.jobs.periodic import fire
from streamkeep.jobs.state import SOON_MS, Step, fields_at, job_id_of, pending_row

log = logging.getLogger("streamkeep.jobs")

MOST_DUE_ROWS: Final = 200  # of the schedule in one transaction
MOST_REFUSED: Final = 200  # jobs in one transaction, such as those that have expired
_MOST_LATE: Final = 10_000  # rows that are due, among which the end of a run is looked for
_LOW_TURN: Final = 8  # one call in eight begins with the lowest priority
_NORMAL_TURN: Final = 4


class Taken(NamedTuple):
    """A job that a worker has taken.

    Attributes:
        deliveries: how often its entry was delivered, which is also the token of this delivery.
        deaths: how many workers died while they ran it.
        lost: how many of these deliveries ended with the death of a worker; they are no attempts.
        runtime_key: the row of the schedule that ends its run; empty if there is none.
        begun_ms: when it was taken.
    """

    place: layout.Place
    fields: layout.Fields
    consumer: bytes
    deliveries: int
    deaths: int
    lost: int
    runtime_key: bytes
    begun_ms: int = 0


class Taking(NamedTuple):
    """What a worker asks for.

    Attributes:
        known: the names of the tasks that it has; None for one that takes every job.
        turn: a number that rises with each call, for the turns of the priorities.
        lease: of the process that takes; 0 for none.
    """

    consumer: bytes
    lease: int
    most: int
    known: Collection[bytes] | None
    turn: int
    policy_of: Callable[[layout.Fields], Policy]


def take_in(step: Step, wanted: Taking) -> list[Taken]:
    """Take jobs for a worker; return them, at most `wanted.most`."""
    taken: list[Taken] = []
    settings = step.settings
    _take_late(step, wanted, taken)
    while _promote(step, wanted, taken):
        _take_late(step, wanted, taken)
    if settings.paused:
        return taken
    room = _room(step, wanted.most - len(taken))
    if room > 0 and step.left_over()[1]:
        _take_parked(step, wanted, taken, room)
        room = _room(step, wanted.most - len(taken))
    if room > 0:
        _take_entries(step, wanted, taken, room)
    return taken


def _room(step: Step, count: int) -> int:
    """Return how many jobs may be taken under the queue's limit of its concurrency.

    Those of dead workers do not count: they could not be taken, and the queue would stand still.
    Which these are is asked only if it matters: it would make each take 2 to 8 % slower.
    """
    limit = step.settings.concurrency
    if not limit:
        return count
    room = limit - step.count_running()
    if room < count:
        room = limit - step.count_running(alive=True)
    return max(0, min(count, room))


# --- the schedule -------------------------------------------------------------------------------


def _promote(step: Step, wanted: Taking, taken: list[Taken]) -> bool:
    """Do what is due; retries are taken at once. Return whether that has made more due.

    A retry without room leaves the schedule as well. Otherwise what is due after many of them would
    wait with them, such as the end of the run for whose room they wait.
    """
    room = -1  # asked for only if a retry is due
    ended = False
    for row, value in step.due(MOST_DUE_ROWS):
        if row.kind == layout.DELAYED:
            step.delete_row(row.key)
            step.counters.delayed -= 1
            fields = step.take_numbered(layout.unpack_time(row.reference))
            if fields is not None:
                admit(step, fields, priority_of(fields))
        elif row.kind == layout.RETRY:
            if room < 0:
                room = 0 if step.settings.paused else _room(step, wanted.most)
            place = layout.unpack_place(row.reference)
            step.delete_row(row.key)
            if len(taken) < room:
                _take_again(step, wanted, taken, place)
            else:
                step.put_row(layout.LATE + row.key[1:], value)
        elif row.kind == layout.RUNTIME:
            _end_run(step, row, value)
            ended = True
        else:
            fire(step, row)
    return ended


def _take_late(step: Step, wanted: Taking, taken: list[Taken]) -> None:
    """Take jobs whose retry found no room when it was due."""
    if not step.left_over()[0] or step.settings.paused:
        return
    found = step.rows(layout.LATE, layout.LATE + b"\xff" * 32, wanted.most)
    room = _room(step, wanted.most) if found else 0
    for key, _ in found:
        if len(taken) >= room:
            break
        step.delete_row(key)
        _take_again(step, wanted, taken, layout.unpack_place(layout.parse_due(key).reference))


def _take_again(step: Step, wanted: Taking, taken: list[Taken], place: layout.Place) -> None:
    """Take a job whose retry is due."""
    step.counters.retrying -= 1
    claimed = claim(step, place, wanted.consumer)
    if claimed is not None:
        _accept(step, wanted, taken, place, *claimed)


def claim(step: Step, place: layout.Place, consumer: bytes) -> tuple[layout.Fields, int] | None:
    """Take a pending entry that has no consumer; return its fields and its delivery count."""
    row = pending_row(step.txn, step.names, place)
    if row is None or row["consumer"]:
        return None
    name = step.stream(place.priority)
    found = step.txn.xclaim(name, layout.GROUP, consumer, 0, [place.entry_id])
    if not found:
        return None
    return dict(found[0][1] or {}), int(row["times_delivered"]) + 1


def _end_run(step: Step, row: layout.Due, value: bytes) -> None:
    """End a run that took too long, if it still lasts: that attempt has failed."""
    step.delete_row(row.key)
    place = layout.unpack_place(row.reference)
    run = pending_row(step.txn, step.names, place)
    deliveries = layout.unpack_time(row.reference[17:])
    if run is None or not run["consumer"] or run["times_delivered"] != deliveries:
        return
    fields = fields_at(step.txn, step.names, place)
    if fields is None:
        return
    # A power loss, or a kill before the handler began, is the death of a worker, and no attempt.
    # With a mark, the worker may have been killed because it hung.
    if step.has_died(place) and step.dead_worker(place, deliveries) is None:
        return
    begun_ms, past = step.now_ms - run["time_since_delivered"], step.past(place)
    job = Taken(place, fields, run["consumer"], deliveries, past.deaths, past.lost, b"", begun_ms)
    _time_out(step, job, Policy.unpack(json.loads(value)))


def _time_out(step: Step, job: Taken, policy: Policy) -> None:
    text = f"it ran longer than {policy.max_runtime_ms} ms, and its worker did not end it"
    fail_attempt(step, job, policy, ("builtins.TimeoutError", text, ""), after_ms=None)


# --- new entries, and those of dead workers -----------------------------------------------------


def _order(step: Step, turn: int) -> list[int]:
    """Return the priorities in the order in which this call takes them."""
    order = list(step.settings.streams)
    if len(order) > 1:
        if turn % _LOW_TURN == _LOW_TURN - 1:
            order.reverse()
        elif turn % _NORMAL_TURN == _NORMAL_TURN - 1:
            order = [*order[1:], order[0]]
    return order


def _take_entries(step: Step, wanted: Taking, taken: list[Taken], room: int) -> None:
    """Take what workers that died had, then new entries."""
    order = _order(step, wanted.turn)
    by_name = {step.stream(priority): priority for priority in order}
    streams: list[tuple[bytes, Position]] = [(name, NEW) for name in by_name]
    writer, shape = step.writer(), int(PAIRS)
    while room > 0:
        before = len(taken)
        # Of the dead, with the count of deliveries in each entry.
        delivery = Delivery(
            layout.GROUP, wanted.consumer, room, False, None, shape, True, wanted.lease, True
        )
        looked_at = step.looked_at
        for name, entries in xreadgroup(writer, streams, delivery, ReplyBudget(room, 0)):
            for ms, seq, flat, idle, former in entries:
                place = layout.Place(by_name[name], ms, seq)
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                had_ms = idle if former else None
                _accept(step, wanted, taken, place, fields, former + 1, had_ms)
        room -= len(taken) - before
        if step.looked_at == looked_at or step.looked_at - len(taken) >= MOST_REFUSED:
            return


def _accept(
    step: Step,
    wanted: Taking,
    taken: list[Taken],
    place: layout.Place,
    fields: layout.Fields,
    deliveries: int,
    had_ms: int | None = None,
) -> None:
    """Take an entry that was just delivered to the worker, unless it must not run.

    Args:
        had_ms: how long a worker had it that is dead; None if none had. The death counts if it was
            running the job.
    """
    step.looked_at += 1
    deaths = lost = 0
    dead = None if had_ms is None else step.dead_worker(place, deliveries - 1)
    try:
        policy = wanted.policy_of(fields)
        expires_ms = layout.number_of(fields, layout.EXPIRES)
        for name in (layout.QUEUED, layout.CONCURRENCY):
            layout.number_of(fields, name)
        missed = missed_gates(step, fields)
    except (ValueError, ArgumentError) as error:
        # Another program has put it. No worker can run it, and it must not hold up the others.
        plain = {name: one for name, one in fields.items() if name not in layout.OPTIONS}
        unread = Taken(place, plain, b"", 0, 0, 0, b"")
        refuse(step, unread, f"its options cannot be read: {error}", DEFAULT_RESULT_TTL_MS)
        return
    passed = 0
    if policy.concurrency and layout.CONCURRENCY not in fields and deliveries == 1:
        # A program that does not have the task, or an earlier version of it, has put the job.
        passed = 0 if missed else int(layout.KEY in fields)
        fields[layout.CONCURRENCY] = b"%d" % policy.concurrency
        missed = True
    if missed:
        step.remove(place)
        fields[layout.ID] = job_id_of(place, fields).encode()
        fields.setdefault(layout.QUEUED, b"%d" % place.ms)
        admit(step, fields, place.priority, passed)
        return
    if deliveries > 1:
        past = step.past(place)
        if had_ms is not None:
            past = past._replace(lost=past.lost + 1)
            begun_ms = step.now_ms - had_ms
            if dead is not None:
                late = _late_run(step, place, deliveries - 1, begun_ms)
                if late is not None:
                    step.keep_past(place, past)
                    counts = deliveries, past.deaths, past.lost
                    run_by = Taken(place, fields, dead.encode(), *counts, b"", begun_ms)
                    _time_out(step, run_by, late)
                    return
                run = layout.Attempt(begun_ms, step.now_ms, dead, layout.DIED)
                past = past._replace(deaths=past.deaths + 1).after(run)
            step.keep_past(place, past)
        deaths, lost = past.deaths, past.lost
    job = Taken(place, fields, wanted.consumer, deliveries, deaths, lost, b"")
    if deaths and deaths >= policy.max_deaths:
        refuse(step, job, f"{deaths} workers died while they ran it", policy.result_ttl_ms)
        return
    begun = deaths or deliveries - lost > 1  # a retry, or after a death, which is no attempt
    if not begun and 0 < expires_ms < step.now_ms:
        job = job._replace(lost=deliveries)  # it had no attempt
        refuse(step, job, "it expired before it ran", policy.result_ttl_ms)
        return
    if wanted.known is not None and fields.get(layout.TASK, b"") not in wanted.known:
        park(step, job)
        return
    key = begin_run(step, place, deliveries, policy)
    taken.append(Taken(place, fields, wanted.consumer, deliveries, deaths, lost, key, step.now_ms))


def _late_run(step: Step, place: layout.Place, deliveries: int, begun_ms: int) -> Policy | None:
    """Remove the row of the schedule of a run if it is due; return the policy of that run.

    It is there if many rows come first: who ended a process that hangs waits for none of them.
    """
    end = layout.RUNTIME + place.pack() + layout.pack_time(deliveries)
    first, last = layout.due_key(begun_ms, b"", b""), layout.due_key(step.now_ms, b"\xff", b"")
    for key, value in step.rows(first, last, _MOST_LATE):  # `extend` may have moved it
        if key.endswith(end):
            step.delete_row(key)
            return Policy.unpack(json.loads(value))
    return None


# --- jobs of unknown tasks ----------------------------------------------------------------------


def park(step: Step, job: Taken) -> None:
    """Leave a job for workers that know its task; it stays pending."""
    step.txn.xnack(step.stream(job.place.priority), layout.GROUP, "SILENT", job.place.entry_id)
    if job.runtime_key:
        step.delete_row(job.runtime_key)
    name = job.fields.get(layout.TASK, b"")
    log.warning(
        "the queue %r has a job of the task %r, which this worker does not know: %s stays pending "
        "for a worker that does",
        step.names.text,
        name.decode(errors="replace"),
        job_id_of(job.place, job.fields),
    )
    step.put_row(layout.parked_key(job.fields, job.place), b"")
    step.counters.parked += 1
    step.wake_workers(1 << 30)


def _parked_prefixes(step: Step, known: Collection[bytes] | None) -> list[bytes]:
    """Return what the keys of the parked jobs begin with whose tasks a worker knows."""
    if known is None:
        return [layout.PARKED]
    found: list[bytes] = []
    first, last = layout.PARKED, layout.PARKED + b"\xff" * 130
    while rows := step.rows(first, last, 1):  # one look for each task
        key = rows[0][0]
        prefix = key[: 2 + key[1]]
        name = prefix[2:]  # which may have been shortened
        shortened = len(name) >= layout.MOST_PART
        if name in known or (shortened and any(layout.short(one) == name for one in list(known))):
            found.append(prefix)
        first = prefix + b"\xff" * (layout.PLACE_SIZE + 1)
    return found


def _take_parked(step: Step, wanted: Taking, taken: list[Taken], room: int) -> None:
    for prefix in _parked_prefixes(step, wanted.known):
        last = prefix + b"\xff" * 120
        for key, _ in step.rows(prefix, last, room):
            step.delete_row(key)
            step.counters.parked -= 1
            place = layout.unpack_place(key[-17:])
            claimed = claim(step, place, wanted.consumer)
            if claimed is not None:
                _accept(step, wanted, taken, place, *claimed)
                room -= 1


# --- waiting ------------------------------------------------------------------------------------


def due_in(snapshot: Snapshot[Any], names: layout.Names, known: Collection[bytes] | None) -> int:
    """Return in how many milliseconds `take_in` may find something; -1 if only a commit decides."""
    step = Step(snapshot, names)
    settings = step.settings
    found = step.rows(layout.SCHEDULE, layout.SCHEDULE + b"\xff" * 8, 1)
    left = -1
    if found:
        row = layout.parse_due(found[0][0])
        # Not longer than a moment: the wall clock may be set while the worker sleeps.
        left = min(max(row.due_ms - step.now_ms, 0), SOON_MS)
        if left == 0:
            return 0
    if settings.paused:
        return left
    if not _room(step, 1):
        return left
    if step.rows(layout.LATE, layout.LATE + b"\xff" * 32, 1):
        return 0
    streams = [names.streams[priority] for priority in settings.streams]
    if snapshot.ready_in(layout.GROUP, streams) == 0:
        return 0
    for prefix in _parked_prefixes(step, known):
        if step.rows(prefix, prefix + b"\xff" * 120, 1):
            return 0
    return left
