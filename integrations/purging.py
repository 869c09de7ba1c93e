"""Removing the jobs of a queue that no worker has taken: for `celery purge`, `broker.flush`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from streamkeep.engine.api.views import Snapshot
from streamkeep.jobs import Queue
from streamkeep.jobs.cancelling import cancel
from streamkeep.jobs.layout import GROUP, ID, NUMBERED, place_of, unpack_fields
from streamkeep.jobs.state import Step, job_id_of, load_settings

_AT_ONCE: Final = 500


def purge(queue: Queue) -> int:
    """Remove the jobs that wait, now or for their time; return their number.

    Jobs that a worker has are left to it. Each transaction removes a bounded number.
    """
    queue.set_up()
    count = 0
    while ids := queue.read(lambda one: _some_ids(one, queue)):
        removed = queue.step(partial(_cancel, ids), frees=True)
        if not removed:
            break
        count += removed
    return count


def _cancel(ids: list[str], step: Step) -> int:
    return sum(cancel(step, job_id) for job_id in ids)


def _some_ids(snapshot: Snapshot[Any], queue: Queue) -> list[str]:
    """Return IDs of jobs that have not started."""
    ids: list[str] = []
    names = queue.names
    for _, data in snapshot.row_range(names.space, NUMBERED, NUMBERED + b"\xff" * 8, _AT_ONCE):
        ids.append(unpack_fields(data)[ID].decode())
    for priority in load_settings(snapshot, names).streams:
        for group in snapshot.xinfo_groups(names.streams[priority]):
            if group["name"] == GROUP:
                after = b"(" + group["last-delivered-id"]
                for entry in snapshot.xrange(names.streams[priority], after, "+", _AT_ONCE):
                    ids.append(job_id_of(place_of(priority, entry.id), entry.fields))
    return ids[:_AT_ONCE]
