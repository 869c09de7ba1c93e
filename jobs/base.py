"""How a queue begins: the arguments of `Queue`, and what is below it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.jobs import codecs
from streamkeep.jobs.core import Core
from streamkeep.jobs.policy import Policy
from streamkeep.jobs.times import Backoff, Duration, at_least, backoff_of, milliseconds

if TYPE_CHECKING:
    from streamkeep.jobs.queue import Queue


class QueueBase:
    """The beginning and the end of a queue; a base of `Queue`.

    Attributes:
        core: for adapters, what workers and the other parts of the package use.
    """

    _core_type: ClassVar[type[Core]] = Core

    def __init__(
        self,
        path_or_store: str | Path | Store[Any],
        name: str = "default",
        immediate: bool = False,
        *,
        codec: str = codecs.JSON,
        retries: int = 3,
        backoff: str | Duration | Backoff = "1s..10m",
        result_ttl: Duration = "1h",
        max_deaths: int = 5,
        max_result_bytes: int = 1 << 20,
        sync: Sync = "commit",
    ) -> None:
        """Name a queue; it is made when it is first used.

        Args:
            path_or_store: the directory of a store, which is opened at the first use, and again in
                a forked child; or a store that is open.
            immediate: for tests: a put runs what is due, in the calling thread, before it returns.
            codec: of payloads and results: "json", "bytes", "msgspec", one of `register_codec`, or
                "pickle", which runs code that a payload contains: only if all writers are trusted.
            retries: how many attempts may follow the first one that failed.
            backoff: how long a job waits before its next attempt: "1s..10m" is one second after
                the first failure, twice as long after each further one, ten minutes at most; a half
                of it is random. One duration for a fixed wait.
            result_ttl: how long results are kept; 0 for not at all.
            max_deaths: a job that this many workers ran when they died is a dead letter.
            max_result_bytes: the largest result.
            sync: with a path: when a change is durable; see `streamkeep.open`.
        """
        self.core = self._core_type(
            cast("Queue", self),
            path_or_store,
            name,
            immediate=immediate,
            codec=codec,
            policy=Policy(
                at_least(retries, 0, "retries"),
                backoff_of(backoff),
                0,
                milliseconds(result_ttl, "result_ttl"),
                at_least(max_deaths, 1, "max_deaths"),
            ),
            max_result_bytes=at_least(max_result_bytes, 1, "max_result_bytes"),
            sync=sync,
        )
        self.name = name

    @property
    def store(self) -> Store[Any]:
        """The store, which is opened if need be."""
        return self.core.store

    @property
    def consumer(self) -> bytes:
        """The consumer of this process in the groups of the queue."""
        return self.core.consumer

    def close(self) -> None:
        """Close the store, if this queue has opened it. A later call opens it again."""
        self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run_until_idle(self, limit: int = 1_000_000) -> int:
        """Run, in this thread, the jobs that are due, until there are none; return their number.

        For tests, and for programs without a worker. Jobs of tasks only; `get` takes the others.
        """
        return self.core.run_until_idle(limit)
