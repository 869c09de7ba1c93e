"""Results of jobs, as callers that wait for them see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.jobs import codecs, ending, finding
from streamkeep.jobs.errors import JobCancelledError, JobFailedError, NoResultError

if TYPE_CHECKING:
    from streamkeep.jobs.core import Core

Look = Callable[[Snapshot[Any]], list[ending.Stored | None]]


def look_for(core: Core, job_id: str) -> Look:
    """Return the function of a snapshot that looks for the result of a job.

    It returns [result], [None] if there will never be one, or [] while the job has not ended.
    """

    def look(snapshot: Snapshot[Any]) -> list[ending.Stored | None]:
        reader = snapshot.as_bytes()
        stored = ending.load_result(reader, core.names.space, job_id)
        if stored is not None and stored.expires_ms > reader.txn.now_ms():
            return [stored]
        state = finding.find(reader, core.names, job_id).state
        return [None] if state in finding.HAS_ENDED else []

    return look


def result_of(core: Core, job_id: str, timeout: Duration | None) -> Any:
    """Return the result of a job; see `Job.result`."""
    if core.immediate and not core.runs_now():
        core.run_until_idle()
    wait_ms = None if timeout is None else milliseconds(timeout, "timeout")
    look = look_for(core, job_id)
    if wait_ms == 0:
        found = core.read(look)
    else:
        bell = core.names.result_bell(job_id)
        found = core.store.read_when(look, [(bell, None)], block=wait_ms or 0)
    if found:
        core.sync_seen()
    return open_result(core, job_id, found)


def open_result(core: Core, job_id: str, found: list[ending.Stored | None]) -> Any:
    """Return the value of a result that was looked for, or raise what it says."""
    if not found:
        raise TimeoutError(f"the job {job_id} of {core.name!r} has not ended in time")
    stored = found[0]
    if stored is None:
        raise NoResultError(
            f"the queue {core.name!r} has no job {job_id}, and no result of it: it has ended and "
            "its result was not kept or has expired, or it never was"
        )
    if stored.state == ending.CANCELLED:
        raise JobCancelledError(f"the job {job_id} was cancelled before it started")
    if stored.state == ending.FAILED:
        raise JobFailedError(*json.loads(stored.data))
    return codecs.decode(stored.codec, stored.data, f"the result of {job_id}", core.codec)
