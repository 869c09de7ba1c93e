"""How jobs come into a queue: limits, unique names, the schedule, gates, the stream.

A *gate* lets a limited number of jobs through at a time; the others are held in order. The key of a
job is a gate for one job; a task with a limit of its concurrency is a gate for as many. A job goes
through the gate of its key first. It leaves both when it ends, and then the next jobs come into the
stream. So a stream never has two jobs of one key, and what is held slows no other job.

All functions here run in a transaction, and see `Step`.
"""

from __future__ import annotations

import struct
from typing import Final

from streamkeep.engine.commands.xadd import ANY_ID, xadd
from streamkeep.jobs import layout
from streamkeep.jobs.errors import QueueDrainingError, QueueFullError
from streamkeep.jobs.layout import (
    Fields,
    Place,
    held_prefix,
    number_of,
    pack_time,
    place_of,
    short,
    unpack_time,
)
from streamkeep.jobs.state import JOB_PREFIX, Step, delivered_up_to, group_of, job_id_of

NORMAL_NUMBER: Final = 1
_GATE: Final = struct.Struct(">QQQ")  # jobs that are through, jobs that are held, the limit


class Put:
    """The outcome of a put: the ID of the job, and whether it is a new one."""

    __slots__ = ("is_new", "job_id")

    def __init__(self, job_id: str, is_new: bool) -> None:
        self.job_id = job_id
        self.is_new = is_new


def put(step: Step, fields: Fields, priority: int, due_ms: int, *, always: bool) -> Put:
    """Put a job into the queue.

    Args:
        due_ms: when it may start, in Unix milliseconds; 0 for at once.
        always: also if the queue is draining or full: a follow-up of one of its own jobs.

    Raises:
        QueueDrainingError, QueueFullError: nothing was put.
    """
    unique = fields.get(layout.UNIQUE_NAME)
    if unique is not None:
        holder = step.row(layout.UNIQUE + short(unique))
        if holder is not None:
            return Put(holder.decode(), False)
    if not always:
        check_room(step)
    if due_ms > step.now_ms:
        job_id = delay(step, fields, priority, due_ms)
    else:
        job_id = admit(step, fields, priority)
    if unique is not None:
        step.put_row(layout.UNIQUE + short(unique), job_id.encode())
    return Put(job_id, True)


# --- limits -------------------------------------------------------------------------------------


def check_room(step: Step) -> None:
    """Raise unless the queue takes another job; make room if its limits say so."""
    settings = step.settings
    if settings.draining:
        raise QueueDrainingError(
            f"the queue {step.names.text!r} is draining and takes no jobs; next: resume it"
        )
    if not settings.limited:
        return
    dropped = False
    while (problem := full(step)) is not None:
        if settings.when_full != "drop" or not drop_oldest(step):
            error = QueueFullError(
                f"the queue {step.names.text!r} is full: {problem}; next: put again later, or "
                "raise its limits"
            )
            error.partly = dropped
            raise error
        dropped = True


def full(step: Step) -> str | None:
    """Return why the queue is full; None if it takes another job."""
    settings = step.settings
    if settings.max_length:
        waiting = step.backlog()[0] + step.counters.held
        if waiting >= settings.max_length:
            return f"{waiting:,} jobs wait, the limit is {settings.max_length:,}"
    if settings.max_age_ms:
        oldest = oldest_waiting(step)
        if oldest is not None and step.now_ms - oldest > settings.max_age_ms:
            age_s = (step.now_ms - oldest) / 1000
            return f"its oldest job waits for {age_s:.1f} s, the limit is {settings.max_age_ms} ms"
    return None


def oldest_waiting(step: Step) -> int | None:
    """Return since when the oldest job in the streams waits, in Unix milliseconds."""
    found: list[int] = []
    for priority in step.settings.streams:
        entry = next_waiting(step, priority)
        if entry is not None:
            found.append(entry[0].ms)
    return min(found, default=None)


def next_waiting(step: Step, priority: int) -> tuple[Place, Fields] | None:
    """Return the next entry of a stream that the group has not read; None if it has read all."""
    name = step.stream(priority)
    if group_of(step.txn, name) is None:
        return None
    found = step.txn.xrange(name, b"(" + delivered_up_to(step.txn, name), "+", 1)
    return (place_of(priority, bytes(found[0].id)), found[0].fields) if found else None


def drop_oldest(step: Step) -> bool:
    """Make the oldest job that waits a dead letter; return False if none is in a stream."""
    from streamkeep.jobs.ending import bury  # which promotes by `release`, below

    oldest: tuple[Place, Fields] | None = None
    for priority in step.settings.streams:
        entry = next_waiting(step, priority)
        if entry is not None and (oldest is None or entry[0].ms < oldest[0].ms):
            oldest = entry
    if oldest is None:
        return False
    place, fields = oldest
    name = step.stream(place.priority)
    # Delivered first, so that the counters of the group stay exact.
    step.txn.xreadgroup(layout.GROUP, b"(limits)", {name: ">"}, count=1)
    step.txn.xackdel(name, layout.GROUP, place.entry_id, ref_policy="ACKED")
    bury(step, place, fields, reason="the queue was full", attempts=0)
    return True


# --- into the schedule, or the stream -----------------------------------------------------------


def delay(step: Step, fields: Fields, priority: int, due_ms: int) -> str:
    """Store a job until its time; return its ID."""
    number = _give_number(step, fields, priority)
    step.put_numbered(number, fields)
    step.schedule(due_ms, layout.DELAYED, pack_time(number))
    step.put_row(layout.PLACE + short(fields[layout.ID]), b"s" + pack_time(due_ms))
    step.counters.delayed += 1
    return fields[layout.ID].decode()


def admit(step: Step, fields: Fields, priority: int, passed: int = 0) -> str:
    """Let a job through its gates into the stream, or hold it; return its ID.

    Args:
        passed: how many of its gates it is through.
    """
    for index, (gate, limit) in enumerate(gates_of(fields)):
        if index >= passed and not _enter(step, gate, limit):
            return _hold(step, fields, priority, gate, index)
    if priority not in step.settings.streams:
        step.make_stream(priority)
    pairs: list[bytes] = []
    for name, value in fields.items():
        if name != layout.PRIORITY:
            pairs += (name, value)
    added = xadd(step.writer(), step.stream(priority), pairs, ANY_ID, False, None, None)
    assert added is not None
    place = place_of(priority, added)
    if layout.ID in fields:
        step.put_row(layout.PLACE + short(fields[layout.ID]), place.pack())
    return job_id_of(place, fields)


def gates_of(fields: Fields) -> list[tuple[bytes, int]]:
    """Return the gates of a job in their order, each with its limit."""
    gates: list[tuple[bytes, int]] = []
    if layout.KEY in fields:
        gates.append((b"k" + short(fields[layout.KEY]), 1))
    if layout.CONCURRENCY in fields:
        gates.append(
            (b"t" + short(fields.get(layout.TASK, b"")), number_of(fields, layout.CONCURRENCY))
        )
    return gates


def _give_number(step: Step, fields: Fields, priority: int) -> int:
    """Give a job a number, unless it has one, and note what its stream would say; return it."""
    number = step.number_of(fields)
    if not number:
        number = step.take_number()
        fields[layout.ID] = f"{JOB_PREFIX}{number}".encode()
        fields[layout.QUEUED] = str(step.now_ms).encode()
    fields[layout.PRIORITY] = layout.PRIORITIES[priority].encode()
    return number


def priority_of(fields: Fields) -> int:
    """Return the number of the priority of a numbered job."""
    return (
        layout.PRIORITIES.index(fields[layout.PRIORITY].decode())
        if layout.PRIORITY in fields
        else NORMAL_NUMBER
    )


# --- gates --------------------------------------------------------------------------------------


def _load_gate(step: Step, gate: bytes) -> tuple[int, int, int]:
    data = step.row(layout.GATE + gate)
    if data is None:
        return 0, 0, 0
    inside, held, limit = _GATE.unpack(data)
    return inside, held, limit


def _save_gate(step: Step, gate: bytes, inside: int, held: int, limit: int) -> None:
    if inside or held:
        step.put_row(layout.GATE + gate, _GATE.pack(inside, held, limit))
    else:
        step.delete_row(layout.GATE + gate)


def _enter(step: Step, gate: bytes, limit: int) -> bool:
    """Let a job through a gate; return False if it has to wait."""
    inside, held, _ = _load_gate(step, gate)
    if held or inside >= limit:
        return False
    _save_gate(step, gate, inside + 1, held, limit)
    return True


def _hold(step: Step, fields: Fields, priority: int, gate: bytes, index: int) -> str:
    """Hold a job at a gate; return its ID."""
    number = _give_number(step, fields, priority)
    inside, held, limit = _load_gate(step, gate)
    order = step.take_number()  # a delayed job has an older number, and came later
    step.put_numbered(number, fields)
    key = held_prefix(gate) + pack_time(order)
    step.put_row(key, pack_time(number) + bytes((index,)))
    step.put_row(layout.PLACE + short(fields[layout.ID]), b"h" + key)
    _save_gate(step, gate, inside, held + 1, limit)
    step.counters.held += 1
    return fields[layout.ID].decode()


def release(step: Step, fields: Fields) -> None:
    """Free the gates of a job that has ended, and admit the next jobs."""
    for gate, limit in reversed(gates_of(fields)):
        inside, held, _ = _load_gate(step, gate)
        _save_gate(step, gate, max(inside - 1, 0), held, limit)
        _let_in(step, gate, limit)


def _let_in(step: Step, gate: bytes, limit: int) -> None:
    """Let held jobs through a gate as far as its limit goes."""
    inside, held, _ = _load_gate(step, gate)
    while held and inside < limit:
        prefix = held_prefix(gate)
        found = step.rows(prefix, prefix + b"\xff" * 8, 1)
        if not found:
            held = 0
            break
        key, value = found[0]
        step.delete_row(key)
        held -= 1
        step.counters.held -= 1
        fields = step.take_numbered(unpack_time(value))
        if fields is None:
            continue
        inside += 1
        _save_gate(step, gate, inside, held, limit)
        admit(step, fields, priority_of(fields), value[8] + 1)
        inside, held, _ = _load_gate(step, gate)
    _save_gate(step, gate, inside, held, limit)


def cancel_held(step: Step, key: bytes) -> Fields | None:
    """Remove a held job; return its fields."""
    value = step.row(key)
    if value is None:
        return None
    step.delete_row(key)
    step.counters.held -= 1
    fields = step.take_numbered(unpack_time(value))
    gate = key[2 : 2 + key[1]]
    inside, held, limit = _load_gate(step, gate)
    _save_gate(step, gate, inside, max(held - 1, 0), limit)
    if fields is not None and value[8]:  # it is through its first gate, that of its key
        release(step, {name: one for name, one in fields.items() if name == layout.KEY})
    return fields
