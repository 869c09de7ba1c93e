"""How jobs come into their stream: the schedule, and gates.

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
from streamkeep.jobs.state import JOB_PREFIX, Step, job_id_of, number_in

NORMAL_NUMBER: Final = 1
_MOST_FREED: Final = 1000  # gates, in one transaction
# Jobs that are through, jobs that are held, and how many of the first may have no field `queued`:
# earlier versions, which gave them none, stored the limit there.
_GATE: Final = struct.Struct(">QQQ")


# --- into the schedule, or the stream -----------------------------------------------------------


def delay(step: Step, fields: layout.Fields, priority: int, due_ms: int) -> str:
    """Store a job until its time; return its ID."""
    number = _give_number(step, fields, priority)
    step.put_numbered(number, fields)
    step.schedule(due_ms, layout.DELAYED, layout.pack_time(number))
    step.put_row(layout.PLACE + layout.short(fields[layout.ID]), b"s" + layout.pack_time(due_ms))
    step.counters.delayed += 1
    return fields[layout.ID].decode()


def admit(step: Step, fields: layout.Fields, priority: int, passed: int = 0) -> str:
    """Let a job through its gates into the stream, or hold it; return its ID.

    Args:
        passed: how many of its gates it is through.
    """
    for index, (gate, limit) in enumerate(gates_of(fields)):
        fields.setdefault(layout.QUEUED, str(step.now_ms).encode())  # see `missed_gates`
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
    place = layout.place_of(priority, added)
    if layout.ID in fields:
        step.put_row(layout.PLACE + layout.short(fields[layout.ID]), place.pack())
    return job_id_of(place, fields)


def gates_of(fields: layout.Fields) -> list[tuple[bytes, int]]:
    """Return the gates of a job in their order, each with its limit."""
    gates: list[tuple[bytes, int]] = []
    if layout.KEY in fields:
        gates.append((b"k" + layout.short(fields[layout.KEY]), 1))
    limit = layout.number_or_0(fields, layout.CONCURRENCY)
    if limit:  # another program may have put 0: as in a task, that is no limit
        gates.append((b"t" + layout.short(fields.get(layout.TASK, b"")), limit))
    return gates


def missed_gates(step: Step, fields: layout.Fields) -> bool:
    """Return whether another program has added an entry, which went through none of its gates."""
    gates = gates_of(fields)
    return layout.QUEUED not in fields and any(not _load_gate(step, one)[2] for one, _ in gates)


def _give_number(step: Step, fields: layout.Fields, priority: int) -> int:
    """Give a job a number, unless it has one, and note what its stream would say; return it."""
    number = number_in(fields.get(layout.ID, b"").decode(errors="replace"))
    if not number:
        number = step.take_number()
        fields.setdefault(layout.ID, f"{JOB_PREFIX}{number}".encode())
    fields.setdefault(layout.QUEUED, str(step.now_ms).encode())
    fields[layout.PRIORITY] = layout.PRIORITIES[priority].encode()
    return number


def priority_of(fields: layout.Fields) -> int:
    name = fields.get(layout.PRIORITY)
    return NORMAL_NUMBER if name is None else layout.PRIORITIES.index(name.decode())


# --- gates --------------------------------------------------------------------------------------


def _load_gate(step: Step, gate: bytes) -> tuple[int, int, int]:
    inside, held, unmarked = _GATE.unpack(step.row(layout.GATE + gate) or bytes(_GATE.size))
    return inside, held, unmarked


def _save_gate(step: Step, gate: bytes, inside: int, held: int, unmarked: int) -> None:
    if inside or held:
        step.put_row(layout.GATE + gate, _GATE.pack(inside, held, unmarked))
    else:
        step.delete_row(layout.GATE + gate)


def _enter(step: Step, gate: bytes, limit: int) -> bool:
    """Let a job through a gate; return False if it has to wait."""
    inside, held, unmarked = _load_gate(step, gate)
    if held or inside >= limit:
        return False
    _save_gate(step, gate, inside + 1, held, unmarked)
    return True


def _hold(step: Step, fields: layout.Fields, priority: int, gate: bytes, index: int) -> str:
    number = _give_number(step, fields, priority)
    inside, held, unmarked = _load_gate(step, gate)
    order = step.take_number()  # a delayed job has an older number, and came later
    step.put_numbered(number, fields)
    key = layout.held_prefix(gate) + layout.pack_time(order)
    step.put_row(key, layout.pack_time(number) + bytes((index,)))
    step.put_row(layout.PLACE + layout.short(fields[layout.ID]), b"h" + key)
    _save_gate(step, gate, inside, held + 1, unmarked)
    step.counters.held += 1
    return fields[layout.ID].decode()


def release(step: Step, fields: layout.Fields) -> None:
    """Free the gates of a job that has ended, and admit the next jobs as far as they have room."""
    for gate, limit in reversed(gates_of(fields)):
        inside, held, unmarked = _load_gate(step, gate)
        has_mark = layout.QUEUED in fields
        if not has_mark and not unmarked:  # it never came through
            continue
        inside = max(inside - 1, 0)
        _let_in(step, gate, limit, inside, held, min(unmarked - (not has_mark), inside))


def _let_in(step: Step, gate: bytes, limit: int, inside: int, held: int, unmarked: int) -> None:
    """Admit the next jobs as far as a gate has room, and save it."""
    while held and inside < limit:
        prefix = layout.held_prefix(gate)
        found = step.rows(prefix, prefix + b"\xff" * 8, 1)
        if not found:
            held = 0
            break
        key, value = found[0]
        step.delete_row(key)
        held -= 1
        step.counters.held -= 1
        next_one = step.take_numbered(layout.unpack_time(value))
        if next_one is None:
            continue
        inside += 1
        _save_gate(step, gate, inside, held, unmarked)
        admit(step, next_one, priority_of(next_one), value[8] + 1)
        inside, held, unmarked = _load_gate(step, gate)
    _save_gate(step, gate, inside, held, unmarked)


def free_gates(step: Step) -> None:
    """Free the gates of jobs that a tool has deleted; the caller knows that no stream has a job.

    Those of tasks first: a job that is held there is through the gate of its key.
    """
    waiting = step.counters.held
    for kind in (b"t", b"k"):
        first = layout.GATE + kind
        found = step.rows(first, first + b"\xff" * 130, _MOST_FREED)
        for key, _ in found:
            held = _load_gate(step, key[1:])[1]
            # One goes in; when it ends, it lets in as many as its task may have.
            _let_in(step, key[1:], 1, 0, held, 0)
        if step.counters.held < waiting or len(found) == _MOST_FREED:
            return


def cancel_held(step: Step, key: bytes) -> None:
    value = step.row(key)
    if value is None:
        return
    step.delete_row(key)
    step.counters.held -= 1
    fields = step.take_numbered(layout.unpack_time(value))
    gate = key[2 : 2 + key[1]]
    inside, held, unmarked = _load_gate(step, gate)
    _save_gate(step, gate, inside, max(held - 1, 0), unmarked)
    if fields is not None and value[8]:  # it is through its first gate, that of its key
        release(step, {name: one for name, one in fields.items() if name != layout.CONCURRENCY})
