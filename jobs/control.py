"""Pause, drain, limits and figures of a queue."""

from __future__ import annotations

from typing import Any, Final

from streamkeep.engine.api.views import Snapshot
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs.base import QueueBase
from streamkeep.jobs.state import EVERYONE, Settings, Step, load_settings
from streamkeep.jobs.stats import QueueStats, stats_of
from streamkeep.jobs.times import Duration, at_least, milliseconds

_FULL: Final = ("block", "error", "drop")


class ControlMethods(QueueBase):
    """Control; a base of `Queue`."""

    # --- control --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let no worker take a job, in any process, until `resume`. Running jobs continue."""
        self.core.step(lambda step: step.change_settings(paused=True))

    def resume(self) -> None:
        """End `pause` and `drain`."""

        def resume(step: Step) -> None:
            step.change_settings(paused=False, draining=False)
            step.wake_workers(EVERYONE)

        self.core.step(resume)

    def drain(self, timeout: Duration | None = None) -> bool:
        """Take no new jobs, except for follow-ups of its own, and wait until all have ended.

        `resume` ends it. When it returns True, the ends of all jobs are on disk, if the store's
        sync mode is "commit".

        Args:
            timeout: seconds, or a text; None for no limit, 0 for no wait.

        Returns:
            Whether nothing waits, runs, or is delayed.
        """
        self.core.step(lambda step: step.change_settings(draining=True))
        if self.core.immediate and not self.core.runs_now():
            self.run_until_idle()
        wait_ms = None if timeout is None else milliseconds(timeout, "timeout")

        def is_empty(snapshot: Snapshot[Any]) -> list[bool]:
            found = stats_of(snapshot.as_bytes(), self.core.names)
            return [] if found.waiting or found.running or found.delayed else [True]

        if wait_ms == 0:
            ended = self.core.read(is_empty)
        else:
            bell = self.core.names.end_bell
            ended = self.core.store.read_when(is_empty, [(bell, None)], block=wait_ms or 0)
        if ended:
            self.core.sync_seen()
        return bool(ended)

    def set_limits(
        self,
        *,
        max_length: int | None = None,
        max_age: Duration | None = None,
        when_full: str | None = None,
        concurrency: int | None = None,
    ) -> Settings:
        """Set limits of the queue, in the store, for all its programs; return all settings.

        A setting that is None stays as it is; 0 removes a limit.

        Args:
            max_length: how many jobs may wait (not those that are delayed, or run).
            max_age: how long the oldest may wait.
            when_full: what a put does beyond one of these limits. "error": it raises
                QueueFullError. "block": it waits, and raises inside of a transaction. "drop": it
                makes the oldest waiting jobs dead letters; jobs that have waited for longer than
                `max_age` become dead letters when they are taken.
            concurrency: how many jobs of the queue may run at a time, in all processes.
        """
        changes: dict[str, Any] = {}
        if max_length is not None:
            changes["max_length"] = at_least(max_length, 0, "max_length")
        if max_age is not None:
            changes["max_age_ms"] = milliseconds(max_age, "max_age")
        if concurrency is not None:
            changes["concurrency"] = at_least(concurrency, 0, "concurrency")
        if when_full is not None:
            if when_full not in _FULL:
                raise ArgumentError(f"when_full must be one of {_FULL}, not {when_full!r}")
            changes["when_full"] = when_full

        def change(step: Step) -> Settings:
            step.change_settings(**changes)
            step.wake_workers(EVERYONE)
            step.txn.wake(self.core.names.room_bell)
            return step.settings

        return self.core.step(change)

    def settings(self) -> Settings:
        """Return the settings that all programs of the queue share."""
        return self.core.read(lambda one: load_settings(one, self.core.names))

    def stats(self) -> QueueStats:
        """Return how many jobs wait, run, are delayed and dead, and how many workers live."""
        return self.core.read(lambda one: stats_of(one, self.core.names))
