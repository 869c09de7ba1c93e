"""How far behind the streaming queries of a session are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one query was behind one stream, when it planned a batch.

    Attributes:
        query: its name, or its ID where it has none.
        entries: how many it will not have read after this batch.
        seconds: between the newest entry and the last that it will have read, by their IDs.
    """

    query: str
    batch: int
    key: str
    entries: int
    seconds: float


class ProgressListener(StreamingQueryListener):
    """Keeps the newest `Lag` of every query and stream.

    >>> listener = ProgressListener(print)
    >>> spark.streams.addListener(listener)

    Args:
        tell: called with each `Lag`, in a thread of Spark's.

    Attributes:
        lags: by query and stream.
    """

    def __init__(self, tell: Callable[[Lag], object] | None = None) -> None:
        self.lags: dict[tuple[str, str], Lag] = {}
        self._tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take what our sources report."""
        progress = event.progress
        query = progress.name or str(progress.id)
        for source in progress.sources:
            for key, latest in _reported(source.latestOffset):
                lag = Lag(query, progress.batchId, key, *latest)
                self.lags[query, key] = lag
                if self._tell is not None:
                    self._tell(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """What was known last stays."""


def _reported(text: str | None) -> list[tuple[str, tuple[int, float]]]:
    """Return what one of our sources says in `latestOffset`; nothing for others'."""
    try:
        streams = json.loads(text or "")
        return [
            (key, (int(one["entriesBehind"]), float(one["secondsBehind"])))
            for key, one in streams.items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
