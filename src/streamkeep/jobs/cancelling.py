"""Cancelling jobs that have not started. Functions of a transaction."""

from __future__ import annotations

from streamkeep.jobs import ending, layout
from streamkeep.jobs.admission import cancel_held
from streamkeep.jobs.codecs import JSON
from streamkeep.jobs.finding import find
from streamkeep.jobs.options import DEFAULT_RESULT_TTL_MS
from streamkeep.jobs.state import Step, number_in, place_key


def cancel(step: Step, job_id: str) -> bool:
    """Remove a job that has not started; return False if it has, or if there is none."""
    found = find(step.txn, step.names, job_id)
    if found.state == "delayed":
        number = number_in(job_id)
        step.delete_row(layout.due_key(found.due_ms, layout.DELAYED, layout.pack_time(number)))
        step.take_numbered(number)
        step.counters.delayed -= 1
        ending.give_up_names(step, found.fields)
    elif found.state == "held":
        where = step.row(place_key(job_id))
        assert where is not None
        cancel_held(step, where[1:])
        ending.give_up_names(step, found.fields)
    elif found.state == "waiting" and found.place is not None:
        step.txn.xdel(step.stream(found.place.priority), found.place.entry_id)
        ending.forget(step, found.place, found.fields, 1)
    elif found.state == "parked" and found.place is not None and not found.deliveries:
        step.delete_row(layout.parked_key(found.fields, found.place))
        step.counters.parked -= 1
        step.remove(found.place)
        ending.forget(step, found.place, found.fields, 1)
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
    step.txn.wake(step.names.result_bell(job_id))
