"""Dead letters, and other work of an operator: jobs that run now, and jobs that are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import utf8
from streamkeep.jobs import ending, enqueue, finding, layout, state
from streamkeep.jobs.admission import NORMAL_NUMBER, cancel_held, free_gates
from streamkeep.jobs.codecs import JSON
from streamkeep.jobs.options import DEFAULT_RESULT_TTL_MS
from streamkeep.jobs.state import Reader, Step, rows_below

if TYPE_CHECKING:
    from streamkeep.jobs.queue import Queue

# --- strays ---------------------------------------------------------------------------------------
#
# Jobs that a tool outside of the queue gave back: pending, with no consumer and no retry.
#
# A client that runs XNACK on a stream of the queue leaves an entry for consumers that claim.
# Workers of the queue take what has no consumer only when the schedule says so. So each process
# looks for such entries once, when it begins to use the queue, and schedules them.

_AT_ONCE: Final = 1000


def schedule_strays(step: Step) -> int:
    """Make strays due now; return how many there were."""
    unowned = 0
    for priority in step.settings.streams:
        found = step.txn.xpending(step.stream(priority), layout.GROUP)
        unowned += found["pending"] - sum(int(one["pending"]) for one in found["consumers"])
    if unowned <= step.counters.retrying + step.counters.parked:  # the rows explain all of them
        return 0
    known = {place for _, place in retries(step.txn, step.space)}
    known |= {
        layout.unpack_place(key[-layout.PLACE_SIZE :])
        for key, _ in rows_below(step.txn, step.space, layout.PARKED)
    }
    count = 0
    for priority in step.settings.streams:
        name = step.stream(priority)
        start = "-"
        while rows := step.txn.xpending_range(name, layout.GROUP, start, "+", _AT_ONCE):
            for row in rows:
                place = layout.place_of(priority, bytes(row["message_id"]))
                if not row["consumer"] and place not in known:
                    step.schedule(step.now_ms, layout.RETRY, place.pack())
                    step.counters.retrying += 1
                    count += 1
            start = f"({rows[-1]['message_id'].decode()}"
    return count


def free_deleted(step: Step) -> None:
    """Free the keys, and the places in limits, of jobs that a tool has deleted.

    Only where no stream has a job: otherwise it would have to read all of them.
    """
    for priority in step.settings.streams:
        pending = step.txn.xpending(step.stream(priority), layout.GROUP)["pending"]
        if pending or enqueue.next_waiting(step, priority) is not None:
            return
    free_gates(step)


def retries(reader: Reader, space: bytes) -> Iterator[tuple[bytes, layout.Place]]:
    """Yield the rows of jobs that wait for their retry: the key, and the entry."""
    for prefix in (layout.LATE, layout.SCHEDULE):
        for key, _ in rows_below(reader, space, prefix):
            if (row := layout.parse_due(key)).kind == layout.RETRY:
                yield key, layout.unpack_place(row.reference)


AT_ONCE: Final = 100  # in one transaction
TRIES: Final = 10  # to find a job that runs again and again in the meantime
_CONSUMER: Final = b"(purge)"
_CLOCK_SET_BACK_MS: Final = 3_600_000  # at most, between a put and its dead letter
_OF_RUN: Final = (  # fields that a letter has of the run that ended
    b"job from reason error message traceback attempts deaths queued failed begun worker"
    b" history expires"
).split()


class Letter(NamedTuple):
    """A dead letter.

    Attributes:
        id: of its entry in `NAME:dead`.
        job: the ID that the job had.
        error, message, traceback: what its last attempt raised; empty if nothing was raised.
        deaths: how many workers died with it.
        queued_ms, failed_ms: when it was put and when it became a dead letter, Unix milliseconds.
        fields: all fields of the entry.
    """

    id: str
    job: str
    task: str
    reason: str
    error: str
    message: str
    traceback: str
    attempts: int
    deaths: int
    queued_ms: int
    failed_ms: int
    fields: layout.Fields

    @property
    def history(self) -> list[layout.Attempt]:
        """The last ten runs that did not end the job."""
        return layout.parse_history(self.fields.get(layout.HISTORY, b""))


Wanted = Callable[[Letter], bool]


def letter_of(entry_id: bytes, fields: layout.Fields) -> Letter:
    """Return a dead letter of its entry; what is missing is empty or 0."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    def number(name: bytes) -> int:
        value = fields.get(name, b"")
        return int(value) if value.isdigit() else 0

    texts = map(text, (b"job", layout.TASK, b"reason", b"error", b"message", b"traceback"))
    numbers = map(number, (b"attempts", b"deaths", b"queued", b"failed"))
    return Letter._make([entry_id.decode(), *texts, *numbers, fields])


def letters(
    snapshot: Snapshot[Any], name: bytes, start: str | int = "-", *, reverse: bool = False
) -> Iterator[Letter]:
    for entry in snapshot.scan(name, start, reverse=reverse):
        yield letter_of(entry.id, entry.fields)


def letter_of_job(snapshot: Snapshot[Any], names: layout.Names, job_id: str) -> Letter | None:
    """Return the dead letter of a job; of a job that has a number, this reads all letters."""
    place = state.place_in(job_id)
    start = "-" if place is None else max(0, place.ms - _CLOCK_SET_BACK_MS)
    found = letters(snapshot, names.dead, start)
    return next((one for one in found if one.job == job_id), None)


def chosen(
    snapshot: Snapshot[Any],
    names: layout.Names,
    named: tuple[str | Letter, ...],
    reason: str | None,
    task: str | None,
) -> list[Letter]:
    """Return the letters that match; of many large ones, only these are kept in memory."""
    given = [one for one in named if isinstance(one, Letter)]
    if given and len(given) == len(named):  # the change looks if they are there
        return [one for one in given if matches(one, reason, task)]
    found = (one for one in letters(snapshot, names.dead) if matches(one, reason, task))
    if not named:
        return list(found)
    texts = {utf8(one, "a dead letter").decode() for one in named if not isinstance(one, Letter)}
    ids = texts | {one.id for one in given}
    kept = [one for one in found if one.id in ids or one.job in texts]
    by_id = {one.id: one for one in kept}
    for one in kept:  # both IDs are those of entries, of two streams, so two letters may have one
        other = by_id.get(one.job, one)
        if other is not one and one.job in texts:
            raise ArgumentError(
                f"{one.job!r} is the ID of a dead letter, and of the job of another one; next: "
                f"name the first by its job, {other.job!r}, or the other by its own ID, {one.id!r}"
            )
    return kept


def matches(letter: Letter, reason: str | None, task: str | None) -> bool:
    if task is not None and letter.task != task:
        return False
    texts = (letter.reason, letter.error, letter.message)
    return reason is None or any(reason in text for text in texts)


def requeue(step: Step, letter: Letter) -> bool:
    enqueue.check_open(step)  # it may be full: nobody put these jobs just now
    if not step.txn.xrange(step.names.dead, letter.id, letter.id, 1):
        return False  # another call has removed it
    fields = {name: value for name, value in letter.fields.items() if name not in _OF_RUN}
    fields.pop(layout.ID, None)
    if letter.job:  # otherwise another program has written it, and the job gets the ID of its entry
        fields[layout.ID] = letter.job.encode()
    try:
        layout.number_of(fields, layout.CONCURRENCY)
    except ValueError:  # of another program, too; the job can be run without
        del fields[layout.CONCURRENCY]
    numbers = {one.encode(): number for number, one in enumerate(layout.PRIORITIES)}
    priority = numbers.get(letter.fields.get(b"from", b""), NORMAL_NUMBER)
    if not enqueue.put(step, fields, priority, 0, always=True)[1]:
        return False
    step.delete_row(layout.RESULT + layout.short(letter.job.encode()))  # it has not failed any more
    return drop(step, letter)


def drop(step: Step, letter: Letter) -> bool:
    return bool(step.txn.xdel(step.names.dead, letter.id))


def purge(step: Step) -> int:
    """Remove some jobs that wait, are delayed or held; those that are held may follow one."""
    removed = 0
    for priority in step.settings.streams:
        if enqueue.next_waiting(step, priority) is None:
            continue
        name = step.stream(priority)
        # Delivered first, so that the counters of the group stay exact.
        for _, entries in step.txn.xreadgroup(layout.GROUP, _CONSUMER, {name: ">"}, count=AT_ONCE):
            for entry in entries:
                _remove(step, layout.place_of(priority, bytes(entry.id)), entry.fields)
                removed += 1
        step.txn.xgroup_delconsumer(name, layout.GROUP, _CONSUMER)  # it is no worker
    numbered = step.rows(layout.NUMBERED, layout.NUMBERED + b"\xff" * 8, AT_ONCE)
    ids = [layout.unpack_fields(value)[layout.ID].decode() for _, value in numbered]
    return removed + cancel_all(step, ids)


def purge_all(queue: Queue) -> int:
    """Purge a queue, and remove the jobs that wait for their retry, or were given back."""
    removed = queue.purge()
    while count := queue.core.step(_purge_retries, frees=True):
        removed += count
    return removed


def _purge_retries(step: Step) -> int:
    found = list(islice(retries(step.txn, step.space), AT_ONCE))
    for key, place in found:
        fields = state.fields_at(step.txn, step.names, place) or {}
        step.delete_row(key)
        step.counters.retrying -= 1
        _remove(step, place, fields)
    return len(found)


def _remove(step: Step, place: layout.Place, fields: layout.Fields) -> None:
    """Remove a job that is pending."""
    step.remove(place)
    ending.forget(step, place, fields, 2)
    note_cancelled(step, state.job_id_of(place, fields), fields)


def cancel(step: Step, job_id: str, key: bytes | None = None) -> bool | None:
    """Remove a job that has not started; return False if it has, or if there is none.

    Args, and None: as in `hurry`.
    """
    found = finding.find(step.txn, step.names, job_id)
    if found.state == "delayed":
        number = state.number_in(job_id)
        step.delete_row(layout.due_key(found.due_ms, layout.DELAYED, layout.pack_time(number)))
        step.take_numbered(number)
        step.counters.delayed -= 1
        ending.give_up_names(step, found.fields, job_id)
    elif found.state == "held":
        where = step.row(state.place_key(job_id))
        assert where is not None
        cancel_held(step, where[1:])
        ending.give_up_names(step, found.fields, job_id)
    elif found.state == "waiting" and found.place is not None:
        step.txn.xdel(step.stream(found.place.priority), found.place.entry_id)
        ending.forget(step, found.place, found.fields, 1)
        job_id = state.job_id_of(found.place, found.fields)  # what was given may be the entry's
    elif found.state in ("parked", "retrying") and found.place is not None:
        begun = found.deliveries > step.past(found.place).lost
        if found.state == "retrying":
            if key is None or (value := step.row(key)) is None:
                return None  # it has run again since
            if begun and value != layout.POSTPONED:
                return False
            step.delete_row(key)
            step.counters.retrying -= 1
        elif begun:
            return False
        else:
            step.delete_row(layout.parked_key(found.fields, found.place))
            step.counters.parked -= 1
        _remove(step, found.place, found.fields)
        return True
    else:
        return False
    note_cancelled(step, job_id, found.fields)
    return True


def note_cancelled(step: Step, job_id: str, fields: layout.Fields) -> None:
    """Count a job that was removed before it started, and tell who waits for it."""
    step.counters.cancelled += 1
    facts = {name: fields[name] for name in fields if name in (layout.TASK, layout.QUEUED)}
    stored = ending.Stored(step.now_ms + DEFAULT_RESULT_TTL_MS, ending.CANCELLED, JSON, b"null")
    ending.put_result(step, job_id, stored, facts)
    ending.tell(step, job_id)


def cancel_all(step: Step, job_ids: list[str]) -> int:
    return sum(bool(cancel(step, one)) for one in job_ids)


def hurry(step: Step, job_id: str, key: bytes | None) -> bool | None:
    """Let a job start now; return False if it does not wait for a time, None if it has run since.

    Args:
        key: of the row that says when it is retried.
    """
    found = finding.find(step.txn, step.names, job_id)
    if found.state == "delayed":
        reference = layout.pack_time(state.number_in(job_id))
        step.delete_row(layout.due_key(found.due_ms, layout.DELAYED, reference))
        step.schedule(step.now_ms, layout.DELAYED, reference)
        step.put_row(state.place_key(job_id), b"s" + layout.pack_time(step.now_ms))
        return True
    if found.state != "retrying" or found.place is None:
        return False
    if key is None or (value := step.row(key)) is None:
        return None  # it has run again since
    if key.startswith(layout.SCHEDULE):
        step.delete_row(key)
        step.schedule(step.now_ms, layout.RETRY, found.place.pack(), value)
    return True


def parked(reader: Reader, names: layout.Names) -> list[str]:
    """Return the parked jobs that had no attempt."""
    found: list[str] = []
    for key, _ in rows_below(reader, names.space, layout.PARKED):
        place = layout.unpack_place(key[-layout.PLACE_SIZE :])
        row = state.pending_row(reader, names, place)
        fields = state.fields_at(reader, names, place)
        past = layout.parse_past(reader.row_get(names.space, layout.PAST + place.pack()))
        if row is not None and row["times_delivered"] <= past.lost and fields is not None:
            found.append(state.job_id_of(place, fields))
    return found


def retry_row(reader: Reader, names: layout.Names, job_id: str) -> bytes | None:
    """Return the key of the row that says when a job is retried; None if it is not."""
    found = finding.find(reader, names, job_id)
    if found.state != "retrying":
        return None
    return next((key for key, place in retries(reader, names.space) if place == found.place), None)
