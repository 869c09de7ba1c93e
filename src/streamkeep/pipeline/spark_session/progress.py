"""The lag of the streaming queries of a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming import listener


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one query on one stream at the time it planned a batch.

    Attributes:
        query: its name, or its ID if it has no name.
        entries: the number of entries that remain after this batch.
        seconds: the time from the last entry of the batch to the newest entry, by their IDs.
    """

    query: str
    batch: int
    key: str
    entries: int
    seconds: float


class ProgressListener(listener.StreamingQueryListener):
    """Keeps the newest `Lag` of every query and stream.

    >>> listener = ProgressListener(print)
    >>> spark.streams.addListener(listener)

    Args:
        report: called with each `Lag`, in a thread of Spark.

    Attributes:
        lags: the newest `Lag` by query and stream.
    """

    def __init__(self, report: Callable[[Lag], object] | None = None) -> None:
        self.lags: dict[tuple[str, str], Lag] = {}
        self._report = report

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:
        """Do nothing: there is no lag yet."""

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:
        """Keep the lags that sources of this format report."""
        progress = event.progress
        query = progress.name or str(progress.id)
        for source in progress.sources:
            for key, latest in _reported(source.latestOffset):
                lag = Lag(query, progress.batchId, key, *latest)
                self.lags[query, key] = lag
                if self._report is not None:
                    self._report(lag)

    def onQueryIdle(self, event: listener.QueryIdleEvent) -> None:
        """Do nothing: no lag has changed."""

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:
        """Do nothing: the last lags are kept."""


def _reported(text: str | None) -> list[tuple[str, tuple[int, float]]]:
    """Return the lags in the `latestOffset` of a source; none for a source of another format."""
    try:
        streams = json.loads(text or "")
        return [
            (key, (int(one["entriesBehind"]), float(one["secondsBehind"])))
            for key, one in streams.items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
