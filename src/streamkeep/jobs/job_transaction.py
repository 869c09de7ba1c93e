"""What a handler collects, to happen in the transaction that ends its job: `job.transaction`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from operator import methodcaller
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamkeep.engine.api.redis_pipeline import Pipeline
from streamkeep.engine.api.views import Transaction
from streamkeep.engine.store.command import Command
from streamkeep.format.core.errors import ArgumentError

if TYPE_CHECKING:
    from streamkeep.jobs.job import Job

Work = Callable[[Transaction[Any]], object]


class Block:
    """A `with` block of a transaction, in one context: each task of asyncio has its own.

    Attributes:
        outer: the block around it.
        works: what it has collected, with the blocks in it.
        is_open: it has not ended. A task that was made in it may go on.
    """

    def __init__(self, transaction: JobTransaction, outer: Block | None) -> None:
        self.transaction = transaction
        self.outer = outer
        self.works: list[Work | Block] = []
        self.is_open = True

    def all(self) -> Iterator[Work]:
        for one in self.works:
            if isinstance(one, Block):
                yield from one.all()
            else:
                yield one


collecting: ContextVar[Block | None] = ContextVar("collecting", default=None)


class JobTransaction(Pipeline):
    """What is to happen with the acknowledgement of a job, or not at all: `job.transaction`.

    Its methods are the commands of a store. They are collected, and run in the transaction that
    ends the job, in order; if one of them fails, the attempt has failed. In a `with` block, what is
    put into queues of the same store is collected as well. An exception that leaves the block drops
    what the block has collected.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job.queue.store, True, False)
        self._job = job
        self.environment = job.queue.store._environment
        self._whole = Block(self, None)

    def __enter__(self) -> JobTransaction:
        block = Block(self, collecting.get())
        self._innermost().works.append(block)
        collecting.set(block)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block = collecting.get()
        assert block is not None
        block.is_open = False
        collecting.set(block.outer)
        if error is not None:
            block.works.clear()

    def __len__(self) -> int:
        return len(self._innermost().works)

    def reset(self) -> None:
        """Forget what this block has collected."""
        self._innermost().works.clear()

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Refuse: the end of the job runs it."""
        raise ArgumentError("the transaction of a job runs when the job ends")

    def collect(self, work: Work) -> None:
        """Add a function of the transaction."""
        self._job._check_running()  # what is collected after the end would never happen
        self._innermost().works.append(work)

    def works(self) -> list[Work]:
        """Return all that was collected, in order."""
        return list(self._whole.all())

    def _run(self, command: Command[Any]) -> JobTransaction:
        self.collect(methodcaller("_run", command))
        return self

    def _innermost(self) -> Block:
        """Return the innermost block of this context, or what is around all blocks."""
        block = collecting.get()
        while block is not None and not (block.is_open and block.transaction is self):
            block = block.outer
        return block or self._whole
