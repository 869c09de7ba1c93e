"""How jobs end: result, retry, dead letter, given back, cancelled.

A worker ends only what it still has: the entry must be pending with its consumer and with the
delivery count that it was taken with. Otherwise another worker has the job, or it has ended, and
`JobLostError` is raised before anything changes. So the effects of a job happen once, though it may
run twice.

All functions here run in a transaction, and see `Step`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from streamkeep.engine.api.views import Transaction
from streamkeep.engine.commands.xack import acknowledge, first_lost
from streamkeep.jobs import layout
from streamkeep.jobs.admission import release
from streamkeep.jobs.codecs import JSON
from streamkeep.jobs.errors import JobLostError, QueueError
from streamkeep.jobs.handler_errors import plain
from streamkeep.jobs.layout import Fields, JobState, Names, Place
from streamkeep.jobs.state import Step, job_id_of

if TYPE_CHECKING:
    from streamkeep.jobs.options import Policy
    from streamkeep.jobs.taking import Taken

DONE: Final = b"d"
FAILED: Final = b"f"
CANCELLED: Final = b"c"
ENDS: Final[dict[bytes, JobState]] = {DONE: "done", FAILED: "failed", CANCELLED: "cancelled"}
RUN_GRACE_MS: Final = 2000  # in which a worker itself ends a job that runs too long
_EXPIRED_AT_ONCE: Final = 4  # results that each end of a job may remove
_EXPIRED_WHEN_IDLE: Final = 1000  # that a process removes when it finds no job, and when it begins
_KEPT_PAYLOAD: Final = 200  # bytes, up to which it is kept of a job that has ended
_SEPARATOR: Final = b"\0"


class Stored(NamedTuple):
    expires_ms: int
    state: bytes
    codec: str
    data: bytes


class End(NamedTuple):
    """The end of a job that did its work.

    Attributes:
        result: the name of a codec and the bytes that it made; None if there is no result.
        ttl_ms: how long the result is kept; 0 for not at all.
        works: functions of the transaction that its handler has collected.
    """

    job: Taken
    result: tuple[str, bytes] | None
    ttl_ms: int
    works: Sequence[Callable[[Transaction[Any]], object]]


# --- ownership ----------------------------------------------------------------------------------


def check_owned(step: Step, jobs: Sequence[Taken]) -> None:
    """Raise JobLostError unless a worker still has all of these jobs."""
    by_stream: dict[tuple[int, bytes], list[Taken]] = {}
    for job in jobs:
        by_stream.setdefault((job.place.priority, job.consumer), []).append(job)
    for (priority, consumer), its in by_stream.items():
        deliveries = [(job.place.ms, job.place.seq, job.deliveries) for job in its]
        name = step.stream(priority)
        lost = first_lost(step.writer(), name, layout.GROUP, consumer, deliveries)
        for job in its:
            if (job.place.ms, job.place.seq) == lost:
                job_id = job_id_of(job.place, job.fields)
                raise JobLostError(
                    f"the job {job_id} of {step.names.text!r} is no longer this worker's: it has "
                    "ended, or another worker has it"
                )


# --- ends ---------------------------------------------------------------------------------------


def end_all(txn: Transaction[Any], names: Names, ends: Sequence[End]) -> Step:
    """End jobs that did their work, in one transaction of their queue; return its step."""
    step = Step(txn, names)
    check_owned(step, [one.job for one in ends])
    works = [work for one in ends for work in one.works]
    if works:
        try:
            for work in works:
                work(txn)
        except QueueError as error:  # of a queue that is full, perhaps after other works
            error.partly = True
            raise
        step = Step(txn, names)  # they may have put jobs into this queue
    finish(step, ends)
    step.save()
    return step


def finish(step: Step, ends: Sequence[End]) -> None:
    """End jobs that did their work; the caller has checked that they are this worker's.

    Their entries stay in their streams; see `ended_entries`.
    """
    by_stream: dict[int, list[tuple[int, int]]] = {}
    for one in ends:
        place = one.job.place
        by_stream.setdefault(place.priority, []).append((place.ms, place.seq))
    for priority, ids in by_stream.items():
        acknowledge(step.writer(), step.stream(priority), layout.GROUP, ids)
    for job, result, ttl_ms, _ in ends:
        if job.runtime_key:
            step.delete_row(job.runtime_key)
        history = step.past(job.place).history if job.deliveries > 1 else b""
        forget(step, job.place, job.fields, job.deliveries)
        job_id = job_id_of(job.place, job.fields)
        if ttl_ms and result is not None:
            stored = Stored(step.now_ms + ttl_ms, DONE, *result)
            put_result(step, job_id, stored, _facts(job, history))
        tell(step, job_id)
    step.counters.count_done(len(ends), step.now_ms)


def forget(step: Step, place: Place, fields: Fields, deliveries: int) -> None:
    """Remove the rows of a job that has ended, and let those in that it held back."""
    if deliveries > 1:
        step.delete_row(layout.PAST + place.pack())
    give_up_names(step, fields, job_id_of(place, fields))
    release(step, fields)
    if step.settings.concurrency:
        step.wake_workers()


def give_up_names(step: Step, fields: Fields, job_id: str) -> None:
    """Remove the rows under the names of a job."""
    if layout.ID in fields:
        step.delete_row(layout.PLACE + layout.short(fields[layout.ID]))
    if layout.UNIQUE_NAME in fields:
        key = layout.UNIQUE + layout.short(fields[layout.UNIQUE_NAME])
        if step.row(key) == job_id.encode():  # otherwise it has expired, and another took the name
            step.delete_row(key)


def tell(step: Step, job_id: str) -> None:
    """Wake callers that wait for the end of a job."""
    step.ring(step.names.result_bell(job_id))
    if step.settings.draining:
        step.ring(step.names.end_bell)


def retry(step: Step, job: Taken, due_ms: int, *, counts: bool, delivered: bool = False) -> None:
    """Leave a job pending, without a consumer, until it is due.

    Args:
        counts: whether this was an attempt that failed.
        delivered: whether the delivery counts although it was no attempt.
    """
    name = step.stream(job.place.priority)
    started = counts or delivered
    mode: Literal["FAIL", "SILENT"] = "FAIL" if started else "SILENT"
    step.txn.xnack(name, layout.GROUP, mode, job.place.entry_id)
    if job.runtime_key:
        step.delete_row(job.runtime_key)
    step.counters.retrying += 1
    if counts:
        step.counters.count_failed(step.now_ms)
    value = b"" if started else layout.POSTPONED
    step.schedule(due_ms, layout.RETRY, job.place.pack(), value)
    if step.settings.concurrency:
        step.wake_workers()


def fail_attempt(
    step: Step,
    job: Taken,
    policy: Policy,
    error: tuple[str, str, str],
    *,
    after_ms: int | None,
    final: str = "",
) -> bool:
    """Note that an attempt failed: the job is retried, or becomes a dead letter; return which.

    Args:
        error: its class, its text and its traceback; a class that is empty is not told.
        after_ms: when to retry; None for the backoff of the policy.
        final: why it is not to be retried, if so.

    Returns:
        True if it is retried.
    """
    attempts = job.deliveries - job.lost
    reason = final
    if not reason and attempts > policy.retries:
        reason = f"it failed {attempts} times" if attempts > 1 else "it failed"
    if not reason:
        worker = job.consumer.decode("utf-8", "replace")
        said = plain(": ".join(filter(None, error[:2])))
        run = layout.Attempt(job.begun_ms, step.now_ms, worker, said)
        step.keep_past(job.place, step.past(job.place).after(run))
        wait_ms = policy.backoff.delay_ms(attempts) if after_ms is None else after_ms
        retry(step, job, step.now_ms + wait_ms, counts=True)
        return True
    step.counters.count_failed(step.now_ms)
    step.remove(job.place)
    if job.runtime_key:
        step.delete_row(job.runtime_key)
    bury(step, job, reason, error, policy.result_ttl_ms)
    return False


def bury(step: Step, job: Taken, reason: str, error: tuple[str, str, str], ttl_ms: int) -> None:
    """Make a dead letter of a job that is already out of its stream."""
    place, fields = job.place, job.fields
    job_id = job_id_of(place, fields)
    reason = plain(reason)
    error_type, text, traceback_text = map(plain, error)
    letter: dict[bytes, bytes | str | int] = {
        name: value
        for name, value in fields.items()
        if name not in (layout.PRIORITY, layout.QUEUED)
    }
    letter.update(
        {
            b"job": job_id,
            b"from": layout.PRIORITIES[place.priority],
            b"reason": reason,
            b"error": error_type,
            b"message": text,
            b"traceback": traceback_text,
            b"attempts": job.deliveries - job.lost,
            b"deaths": job.deaths,
            b"queued": fields.get(layout.QUEUED, str(place.ms).encode()),
            b"failed": step.now_ms,
        }
    )
    if job.begun_ms:
        letter |= {layout.BEGUN: job.begun_ms, layout.WORKER: job.consumer}
    if history := step.past(place).history:
        letter[layout.HISTORY] = history
    step.txn.xadd(step.names.dead, letter)
    step.counters.dead += 1
    forget(step, place, fields, 2)
    if ttl_ms:
        shown = (error_type, text) if error_type else ("streamkeep.jobs.JobFailedError", reason)
        data = json.dumps([*shown, traceback_text]).encode()
        stored = Stored(step.now_ms + ttl_ms, FAILED, JSON, data)
        put_result(step, job_id, stored, _facts(job, history))
    tell(step, job_id)


def refuse(step: Step, job: Taken, reason: str, ttl_ms: int) -> None:
    """Make a dead letter of a job that was just delivered, and must not run."""
    step.remove(job.place)
    bury(step, job, reason, ("", "", ""), ttl_ms)


def begin_run(
    step: Step, place: Place, deliveries: int, policy: Policy, former_key: bytes = b""
) -> bytes:
    """Note when a run has to end; return the row of the schedule, empty without a limit."""
    if former_key:
        step.delete_row(former_key)
    if not policy.max_runtime_ms:
        return b""
    due_ms = step.now_ms + policy.max_runtime_ms + RUN_GRACE_MS
    reference = place.pack() + layout.pack_time(deliveries)
    step.schedule(due_ms, layout.RUNTIME, reference, json.dumps(policy.pack()).encode())
    return layout.due_key(due_ms, layout.RUNTIME, reference)


# --- results ------------------------------------------------------------------------------------


def _facts(job: Taken, history: bytes) -> Fields:
    fields = job.fields
    facts = {layout.QUEUED: fields.get(layout.QUEUED, b"%d" % job.place.ms)}
    for name in (layout.TASK, layout.CODEC):
        if name in fields:
            facts[name] = fields[name]
    payload = fields.get(layout.PAYLOAD, b"")
    if len(payload) <= _KEPT_PAYLOAD:
        facts[layout.PAYLOAD] = payload
    if job.begun_ms:
        facts |= {layout.BEGUN: b"%d" % job.begun_ms, layout.WORKER: job.consumer}
    facts[layout.ATTEMPTS] = b"%d" % (job.deliveries - job.lost)
    if history:
        facts[layout.HISTORY] = history
    return facts


def put_result(step: Step, job_id: str, stored: Stored, facts: Fields) -> None:
    """Store a result with facts about its job, and remove some that have expired."""
    key = layout.part_of(job_id, "the ID of a job")
    expires = layout.pack_time(stored.expires_ms)
    value = b"".join((expires, stored.state, stored.codec.encode(), _SEPARATOR, stored.data))
    step.put_row(layout.RESULT + key, value)
    kept = {layout.ID: job_id.encode(), layout.ENDED: b"%d" % step.now_ms, **facts}
    step.put_row(layout.EXPIRY + expires + key, layout.pack_fields(kept))
    remove_expired(step, _EXPIRED_AT_ONCE)


def remove_expired(step: Step, count: int = _EXPIRED_WHEN_IDLE) -> None:
    """Remove results that have expired, at most `count`."""
    last = layout.EXPIRY + layout.pack_time(step.now_ms)
    found = step.rows(layout.EXPIRY, last, count)
    for key, _ in found:
        step.delete_row(key)
        value = step.row(layout.RESULT + key[9:])
        if value is not None and layout.unpack_time(value) == layout.unpack_time(key[1:9]):
            step.delete_row(layout.RESULT + key[9:])


def parse_result(data: bytes) -> Stored:
    """Return what the row of a result holds."""
    codec, _, rest = data[9:].partition(_SEPARATOR)
    return Stored(layout.unpack_time(data), data[8:9], codec.decode(), rest)


def load_result(reader: Any, space: bytes, job_id: object) -> Stored | None:
    data = reader.row_get(space, layout.RESULT + layout.part_of(job_id, "the ID of a job"))
    return None if data is None else parse_result(data)
