"""The routes about the store as a whole: is it well, what does it hold, what did fsck find."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from starlette.responses import Response

import streamkeep
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.metrics.figures import archive_figures, figures_of, store_figures
from streamkeep.metrics.prometheus import CONTENT_TYPE, Metric, metrics_of, text_of
from streamkeep.recovery.backups.backup import last_backup
from streamkeep.recovery.fsck.findings import CATALOGUE, Progress, Severity
from streamkeep.recovery.fsck.store import check
from streamkeep.server.http.overview import now_ms, survey
from streamkeep.server.http.routes import Call, Found, State, route

LOW_DISK: Final = 64 << 20  # bytes free below which a store is called full, as by `status`
_SHOWN: Final = (
    "data_bytes", "reusable_bytes", "journal_bytes", "disk_free_bytes", "last_commit",
    "durable_commit", "checkpoint_commit",
)  # fmt: skip
_MOST_FINDINGS: Final = 200
_making: Final = threading.Lock()
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
        "check": checker_of(call.state).report(),
        "time_ms": now_ms(),
    }


@route("GET /store/survey", "scan xinfo|stream", heavy=True)
def survey_store(call: Call) -> Found:
    """Sums over the streams, and the groups that are stuck."""
    return {
        **survey(call.store, call.user),
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
    checker = checker_of(call.state)
    checker.begin(call.members.get("quick", True))
    return checker.report() or {}


@route("GET /metrics", "info", types="text/plain", whole=True, heavy=True)
def metrics(call: Call) -> Response:
    """Figures for Prometheus."""
    name, text = "streamkeep_http_event_streams", "Event streams that clients have open."
    own = Metric(name, "gauge", text, [({}, call.state.event_streams)])
    found = [*metrics_of(figures_of(call.store)), own, *call.state.more_metrics()]
    return Response(text_of(found), media_type=CONTENT_TYPE)


def _writes(call: Call) -> bool:
    """Return whether the page is to offer changes."""
    return call.state.write and call.user.may_write


# --- fsck ---------------------------------------------------------------------------------------


class Checker:
    """Checks a store in a thread, one check at a time, and keeps what the last one found."""

    def __init__(self, store: Store[bytes]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._report: dict[str, Any] | None = None

    def begin(self, quick: bool) -> None:
        """Begin a check, unless one is running."""
        with self._lock:
            if self._report is not None and self._report["running"]:
                return
            self._report = {
                "running": True,
                "quick": quick,
                "began_ms": now_ms(),
                "done": 0,
                "total": 0,
                "errors": 0,
                "warnings": 0,
                "findings": [],
            }
        threading.Thread(target=self._run, args=(quick,), name="fsck", daemon=True).start()

    def report(self) -> dict[str, Any] | None:
        """Return what the running or the last check has found; None if there was none."""
        with self._lock:
            return None if self._report is None else dict(self._report)

    def _set(self, **members: Any) -> None:
        with self._lock:
            assert self._report is not None
            self._report = {**self._report, **members}

    def _run(self, quick: bool) -> None:
        def moved(progress: Progress) -> None:
            self._set(done=progress.done, total=progress.total)

        counts = {Severity.NOTE: 0, Severity.WARNING: 0, Severity.ERROR: 0}
        findings: list[dict[str, Any]] = []
        failed = None
        try:
            for finding in check(self._store, quick=quick, progress=Progress(moved)):
                counts[finding.severity] += 1
                if len(findings) < _MOST_FINDINGS:
                    kind = CATALOGUE.get(finding.code)
                    advice = None if kind is None else kind.advice
                    findings.append({**finding.as_json(), "advice": advice})
        except (StreamkeepError, OSError) as error:
            failed = str(error)
        self._set(
            running=False,
            ended_ms=now_ms(),
            failed=failed,
            errors=counts[Severity.ERROR],
            warnings=counts[Severity.WARNING],
            findings=findings,
        )


def checker_of(state: State) -> Checker:
    """Return what checks the store of an application: one for all threads."""
    with _making:
        if state.checker is None:
            state.checker = Checker(state.store)
    checker: Checker = state.checker
    return checker
