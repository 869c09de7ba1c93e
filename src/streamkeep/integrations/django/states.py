"""What becomes of a task: its record together with its job, on one snapshot."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from streamkeep.engine.api.views import Snapshot
from streamkeep.integrations.django.records import FAILED, SUCCESSFUL, Record
from streamkeep.jobs import cancelling, codecs, ending
from streamkeep.jobs.dead_letters import letter_of
from streamkeep.jobs.errors import PayloadError
from streamkeep.jobs.layout import CODEC, GROUP, PAYLOAD, Fields, Names

READY: Final = "READY"
RUNNING: Final = "RUNNING"
_RUNNING: Final = "running"


def resolve(snapshot: Snapshot[Any], record: Record, *, search: bool = True) -> Record:
    """Return a record with a status, with what its job says if the task has not ended.

    Args:
        search: look through the dead letters for the arguments of a job that ended without its
            worker. That reads them all.
    """
    if record.status:
        return record
    snapshot = snapshot.as_bytes()
    names = Names(record.queue)
    found = cancelling.find(snapshot, names, record.job)
    if found.state in cancelling.HAS_ENDED:
        return _ended(snapshot, names, record, search)
    args, kwargs = arguments_in(found.fields)
    live = replace(record, status=READY, args=args, kwargs=kwargs)
    if found.state == _RUNNING and found.place is not None:
        name = names.streams[found.place.priority]
        entry_id = found.place.entry_id
        [row] = snapshot.xpending_range(name, GROUP, entry_id, entry_id, 1)
        live.status = RUNNING
        live.attempted = snapshot.txn.now_ms() - int(row["time_since_delivered"])
        live.started = record.started or live.attempted
        live.workers = [*record.workers, found.consumer]
    return live


def _ended(snapshot: Snapshot[Any], names: Names, record: Record, search: bool) -> Record:
    """Return the record of a task whose job was ended by something other than its handler."""
    ended = replace(record, status=FAILED, finished=record.attempted or record.enqueued)
    stored = ending.load_result(snapshot, names.space, record.job)
    if stored is not None and stored.state == ending.DONE:
        ended.status = SUCCESSFUL
    elif stored is not None and stored.state == ending.FAILED:
        kind, text, lines = json.loads(stored.data)
        ended.errors = [*record.errors, [kind, lines or f"{kind}: {text}\n"]]
    elif stored is not None:
        kind = "streamkeep.jobs.JobCancelledError"
        ended.errors = [*record.errors, [kind, f"{kind}: cancelled before it started\n"]]
    if search and ended.status == FAILED:
        for entry in snapshot.scan(names.dead):
            if entry.fields.get(b"job") == record.job.encode():
                letter = letter_of(bytes(entry.id), entry.fields)
                ended.args, ended.kwargs = arguments_in(entry.fields)
                ended.finished = letter.failed_ms
                break
    return ended


def arguments_in(fields: Fields) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in the fields of a job; none if they cannot be read."""
    try:
        codec = fields.get(CODEC, b"json").decode(errors="replace")
        args, kwargs = codecs.decode(codec, fields.get(PAYLOAD, b""), "the payload", codecs.JSON)
        return list(args), dict(kwargs)
    except (PayloadError, TypeError, ValueError):
        return [], {}
