"""What a handler collects, to happen in the transaction that ends its job: `job.transaction`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from operator import methodcaller
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamkeep.engine.api.redis_pipeline import Pipeline
from streamkeep.engine.api.views import Transaction
from streamkeep.format.core.errors import ArgumentError

if TYPE_CHECKING:
    from streamkeep.jobs.queue import Queue

collecting: ContextVar[JobTransaction | None] = ContextVar("collecting", default=None)


class JobTransaction(Pipeline):
    """What is to happen with the acknowledgement of a job, or not at all: `job.transaction`.

    Its methods are the commands of a store. They are collected, and run in the transaction that
    ends the job, in order; if one of them fails, the attempt has failed. In a `with` block, what is
    put into queues of the same store is collected as well. An exception that leaves the block drops
    what the block has collected.
    """

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue.store, True, False)
        self.environment = queue.store._environment
        self._works: list[Callable[[Transaction[Any]], object]] = []
        self._blocks: list[tuple[Token[JobTransaction | None], int]] = []

    def __enter__(self) -> JobTransaction:
        self._blocks.append((collecting.set(self), len(self.works())))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        token, before = self._blocks.pop()
        collecting.reset(token)
        if error is not None:
            self.reset()
            del self._works[before:]

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Refuse: the end of the job runs it."""
        raise ArgumentError("the transaction of a job runs when the job ends")

    def collect(self, work: Callable[[Transaction[Any]], object]) -> None:
        """Add a function of the transaction."""
        self._take_commands()
        self._works.append(work)

    def works(self) -> list[Callable[[Transaction[Any]], object]]:
        """Return all that was collected, in order."""
        self._take_commands()
        return self._works

    def _take_commands(self) -> None:
        self._works += [methodcaller("_run", command) for command in self._take()]
