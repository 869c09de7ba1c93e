"""Beginning jobs that were taken, and ending jobs that did their work, one or several in a call.

Compiled by mypyc, since each job needs both; `Job` has the methods that programs call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from streamkeep.engine.api.views import Transaction
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.humanize import count_text
from streamkeep.jobs.codecs import encode
from streamkeep.jobs.ending import End, end_all
from streamkeep.jobs.errors import JobLostError
from streamkeep.jobs.state import Step

if TYPE_CHECKING:  # interpreted modules, which import this one
    from streamkeep.engine.api.views import Sync
    from streamkeep.jobs.core import Core
    from streamkeep.jobs.job import Job

NOTHING: Final[Any] = object()  # no result was given


# --- on which jobs this process works, so that its death counts for them -------------------------


def begin_all(jobs: list[Job]) -> None:
    """Note that this process works on the jobs that one call has taken."""
    store: Any = jobs[0].queue.core.opened  # of no type here: tests have marks of their own
    marks = None if store is None else store._environment.leases.marks()
    if marks is None:  # there are no leases, or no room for marks, or the store was closed
        return
    for job in jobs:
        taken = job.taken
        if taken is not None:
            mark = job.queue.core.names.mark_of(taken.place, taken.deliveries)
            job._marks.append((marks, marks.add(mark)))
    if len(jobs) > 1:
        batch = list(jobs)
        for job in jobs:
            job._batch = batch


def leave(job: Job) -> None:
    """Note that this process does not work on a job; threads may do so at the same time."""
    try:  # `suppress` costs as much as the rest
        held: Any = job._marks
        marks, place = held.pop()
        marks.remove(place)
    except IndexError:
        pass


# --- ends -----------------------------------------------------------------------------------------


def end_jobs(
    core: Core, its: list[Job], results: Iterable[Any] | None, *, sync: Sync | None = None
) -> None:
    """End jobs that did their work; see `Queue.done_many`.

    Args:
        sync: a sync mode for this transaction, instead of that of the store.
    """
    core.apply(plan_end(core, its, results), frees=True, sync=sync)
    note_ended(core, its)


def plan_end(
    core: Core, its: list[Job], results: Iterable[Any] | None
) -> Callable[[Transaction[Any]], Step]:
    """Return the function of a transaction that ends jobs; it returns its step.

    Call `note_ended` after the transaction.
    """
    given = list(results) if results is not None else [NOTHING] * len(its)
    if len(given) != len(its):
        raise ArgumentError(
            f"{count_text(len(its), 'job')}, and {count_text(len(given), 'result')}"
        )
    if len({*its}) < len(its):  # it would leave its gates twice, and let in two jobs of one key
        raise ArgumentError("a job is given twice")
    for job in its:
        if job.queue.name != core.name:
            raise ArgumentError(f"a job of another queue than {core.name!r}")
    ends = [end_of(job, one) for job, one in zip(its, given, strict=True)]

    def end(txn: Transaction[Any]) -> Step:
        try:
            return end_all(txn, core.names, ends)
        except JobLostError:
            if len(its) == 1:  # of several, the caller finds out which one it is
                leave(its[0])
            raise

    return end


def note_ended(core: Core, its: list[Job]) -> None:
    """Note that the transaction of `plan_end` is done."""
    for job in its:
        job._end()
    taken = [job.taken for job in its if job.taken is not None]
    core.ended_entries.note((one.place, one.fields) for one in taken)


def end_of(job: Job, result: Any) -> End:
    """Return what the end of a job needs: its result, encoded, and what was collected."""
    core, taken = job.queue.core, job._taken()
    job._check_running()
    stored: tuple[str, bytes] | None = None
    ttl_ms = 0
    if result is not NOTHING:
        what = f"the result of job {job.id}"
        stored = core.codec, encode(core.codec, result, what, core.max_result_bytes)
        ttl_ms = core.policy_of(taken.fields).result_ttl_ms
    collected = job._transaction
    return End(taken, stored, ttl_ms, () if collected is None else collected.works())
