"""The routes about the store as a whole: is it well, what does it hold, what did fsck find."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from starlette.responses import Response

import streamkeep
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import keys
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.core.keys import KEYS
from streamkeep.jobs import queue_names
from streamkeep.metrics.figures import LOW_DISK, archive_figures, figures_of, store_figures
from streamkeep.metrics.prometheus import CONTENT_TYPE, Metric, metrics_of, text_of
from streamkeep.recovery.backups.backup import last_backup
from streamkeep.recovery.fsck.findings import CATALOGUE, Progress, Severity
from streamkeep.recovery.fsck.store import check
from streamkeep.server.http.overview import keys_of, now_ms, sees_queue, stuck_in_queue, troubles
from streamkeep.server.http.routes import Call, Found, route

_SHOWN: Final = (
    "data_bytes", "reusable_bytes", "journal_bytes", "disk_free_bytes", "last_commit",
    "durable_commit", "checkpoint_commit",
)  # fmt: skip
_MOST_FINDINGS: Final = 200
_MOST_SCANNED: Final = 2000  # streams that one look at the whole store examines
_MOST_STUCK: Final = 50
_MANY_COMMITS: Final = 10_000  # of a snapshot that keeps pages


@route("GET /health", open=True)
async def health(call: Call) -> Found:
    """Whether the store can be read. Needs no secret."""
    await call.state.async_store.exists("")
    return {"status": "ok"}


@route("GET /store", "info", whole=True, heavy=True)
def store_facts(call: Call) -> Found:
    """Sizes, disk, durability, archive, backup and the last check."""
    store = call.store
    durability, whole = store.durability(), store_figures(store)
    last = durability.last_recovery
    kept = archive_figures(store)._asdict()
    path = store.path.absolute()
    backup = None
    with store.snapshot() as snapshot:
        if (row := last_backup(snapshot)) is not None:
            since = whole.last_commit - row.commit_number - 1  # without that of the backup
            backup = {"time_ms": row.time_ms, "commits_since": max(0, since)}
    return {
        "write": _writes(call),
        "version": streamkeep.__version__,
        "name": path.name,
        "uuid": store.uuid,
        "sync": store.sync_mode,
        **{name: one for name, one in whole._asdict().items() if name in _SHOWN},
        "path": os.fsencode(path).decode("utf-8", "replace"),
        "low_disk": whole.disk_free_bytes < LOW_DISK,
        "last_recovery": None if last is None else last._asdict(),
        "failures": list(durability.failures),
        "old_readers": [
            {"process": one.process, "commits": one.behind}
            for one in durability.readers
            if one.behind >= _MANY_COMMITS
        ],
        "archive": {"size_bytes": kept.pop("bytes"), **kept},
        "backup": backup,
        "copies": [one._asdict() for one in whole.copies],
        "redis": None if whole.redis is None else whole.redis._asdict(),
        "check": call.state.checker.report,
        "time_ms": now_ms(),
    }


@route("GET /store/survey", "scan xinfo|stream", heavy=True)
def survey_store(call: Call) -> Found:
    """Sums over the streams, and the groups that are stuck."""
    entries = size = scanned = groups = pending = 0
    stuck: list[dict[str, Any]] = []
    complete = True
    with call.store.snapshot() as snapshot, translated():
        total = snapshot.txn.rows(KEYS)
        queues = [name for name in queue_names(call.store) if sees_queue(call.user, name)]
        jobs = {key for name in queues for key in keys_of(name)}
        for name, _ in keys.iter_keys(snapshot.txn):
            if not call.sees(name):
                continue
            if scanned == _MOST_SCANNED:
                complete = False
                break
            scanned += 1
            stat = snapshot.stat(name)
            entries += stat.length
            size += stat.node_bytes
            for one in snapshot.xinfo_groups(name):
                groups += 1
                pending += one["pending"]
                if name not in jobs:  # which may run, or wait for a retry, as long as they like
                    stuck += troubles(snapshot, name, one)
        for queue in queues[:_MOST_SCANNED]:
            stuck += stuck_in_queue(snapshot, queue)
    stuck.sort(key=lambda one: -int(one["since_ms"] or 0))
    return {
        "streams": scanned if complete or not call.user.sees_all else total,
        "scanned": scanned,
        "complete": complete,
        "entries": entries,
        "archived": sum(
            one.entries for one in call.store.archived_streams() if call.user.sees(one.key)
        ),
        "size_bytes": size,
        "groups": groups,
        "pending": pending,
        "stuck": stuck[:_MOST_STUCK],
        "queues": len(queues),
        "time_ms": now_ms(),
        "name": call.store.path.absolute().name,
        "write": _writes(call),
        "disk_free_bytes": store_figures(call.store).disk_free_bytes,
    }


@route(
    "POST /store/check",
    "bgsave",  # which also reads the whole store
    body={"quick": "boolean: check only the ends of each stream; true by default"},
    status=202,
    whole=True,
)
def check_store(call: Call) -> Found:
    """Begin to check the store (fsck); GET /store has the result. Changes nothing."""
    checker = call.state.checker
    checker.begin(call.members.get("quick", True))
    return checker.report or {}


@route("GET /metrics", "info", types="text/plain", whole=True, heavy=True)
def metrics(call: Call) -> Response:
    """Figures for Prometheus."""
    name, text = "streamkeep_http_event_streams", "Event streams that clients have open."
    own = Metric(name, "gauge", text, [({}, call.state.event_streams)])
    found = [*metrics_of(figures_of(call.store)), own, *call.state.more_metrics()]
    return Response(text_of(found), media_type=CONTENT_TYPE)


def _writes(call: Call) -> bool:
    """Return whether the page is to offer changes."""
    return call.state.write and call.user.may_write and not call.state.is_replica()


# --- fsck ---------------------------------------------------------------------------------------


class Checker:
    """Checks a store in a thread, one check at a time.

    Attributes:
        report: what the running check, or the last one, has found; None if there was none.
    """

    def __init__(self, store: Store[bytes]) -> None:
        self._store = store
        self.report: dict[str, Any] | None = None

    def begin(self, quick: bool) -> None:
        """Begin a check, unless one is running; only one request may call this at a time."""
        if self.report is None or not self.report["running"]:
            zeros = dict.fromkeys(("done", "total", "errors", "warnings"), 0)
            state = {"running": True, "quick": quick, "began_ms": now_ms()}
            self.report = {**state, **zeros, "findings": []}
            threading.Thread(target=self._run, args=(quick,), name="fsck", daemon=True).start()

    def _set(self, **members: Any) -> None:
        self.report = {**(self.report or {}), **members}  # not in place: replies have it

    def _run(self, quick: bool) -> None:
        progress = Progress(lambda one: self._set(done=one.done, total=one.total))
        counts = dict.fromkeys(Severity, 0)
        findings: list[dict[str, Any]] = []
        failed: str | None = "an internal error"
        try:
            for finding in check(self._store, quick=quick, progress=progress):
                counts[finding.severity] += 1
                if len(findings) < _MOST_FINDINGS:
                    kind = CATALOGUE.get(finding.code)
                    advice = None if kind is None else kind.advice
                    findings.append({**finding.as_json(), "advice": advice})
            failed = None
        except (StreamkeepError, OSError) as error:
            failed = str(error)
        finally:
            self._set(
                running=False,
                ended_ms=now_ms(),
                failed=failed,
                errors=counts[Severity.ERROR],
                warnings=counts[Severity.WARNING],
                findings=findings,
            )
