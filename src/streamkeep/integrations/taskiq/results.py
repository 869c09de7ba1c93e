"""The result backend: results and progress as values that expire."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final, TypeVar

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import JSONSerializer

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.views import Sync, Transaction
from streamkeep.integrations.values import OpenedStore, Values, ttl_of

Returned = TypeVar("Returned")

DEFAULT_TTL_S: Final = 86_400.0
_PROGRESS: Final = "__progress"


class ResultIsMissingError(ResultGetError):
    """There is no result of a task: it has not ended, or its result expired or was taken."""

    __template__ = "there is no result of the task {task_id}"
    task_id: str = ""


class StreamkeepResultBackend(AsyncResultBackend[Returned]):
    """Results of taskiq in a store, which may be that of the broker."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_results: bool = True,
        result_ttl: float | None = DEFAULT_TTL_S,
        serializer: TaskiqSerializer | None = None,
        prefix: str = "taskiq",
        sync: Sync | None = None,
    ) -> None:
        """Name a store; it is opened by `startup`, in each process.

        Args:
            path: the directory of the store, or a URL `streamkeep:////path`.
            keep_results: False removes a result when it is read.
            result_ttl: how many seconds a result is kept; None for without limit.
            serializer: by default JSON. `PickleSerializer` runs code that a result contains: only
                if every program that can write the store is trusted.
            prefix: results of applications with different prefixes are apart.
            sync: when a result is durable; see `streamkeep.open`.
        """
        self._opened = OpenedStore(path, sync)
        self._values = Values(f"{prefix}:results")
        self._serializer = serializer or JSONSerializer()
        self._keep = keep_results
        self._ttl_ms = ttl_of(result_ttl, "result_ttl")

    async def startup(self) -> None:
        await self._opened.asynchronous()

    async def shutdown(self) -> None:
        await asyncio.to_thread(self._opened.close)

    async def set_result(self, task_id: str, result: TaskiqResult[Returned]) -> None:
        """Store a result; it is on disk when this returns (`sync="commit"`)."""
        await self._put(task_id, self._serializer.dumpb(result.model_dump(mode="json")))

    async def is_result_ready(self, task_id: str) -> bool:
        return await self._get(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Returned]:
        """Return a result.

        Raises:
            ResultIsMissingError: there is none.
        """
        data = await (self._get(task_id) if self._keep else self._pop(task_id))
        if data is None:
            raise ResultIsMissingError(task_id=task_id)
        result: TaskiqResult[Returned] = TaskiqResult.model_validate(self._serializer.loadb(data))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        data = self._serializer.dumpb(progress.model_dump(mode="json"))
        await self._put(task_id + _PROGRESS, data)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        data = await self._get(task_id + _PROGRESS)
        if data is None:
            return None
        progress: TaskProgress[Any] = TaskProgress.model_validate(self._serializer.loadb(data))
        return progress

    async def _put(self, name: str, data: bytes) -> None:
        def put(txn: Transaction[Any]) -> None:
            self._values.put(txn.as_bytes(), name, data, self._ttl_ms)

        await self._opened.use_async(lambda store: store.apply(put))

    async def _get(self, name: str) -> bytes | None:
        async def look(store: AsyncStore[Any]) -> bytes | None:
            with store.snapshot() as snapshot:
                found = self._values.get(snapshot.as_bytes(), name)
            if found is None:  # it may be in a store in place of this one
                self._opened.check()
            return found

        return await self._opened.use_async(look)

    async def _pop(self, name: str) -> bytes | None:
        found: bytes | None = None

        def pop(txn: Transaction[Any]) -> None:
            nonlocal found
            one = txn.as_bytes()
            # After a failed sync, the first removal may be in the store.
            found = self._values.get(one, name) or found
            self._values.delete(one, name)

        await self._opened.use_async(lambda store: store.apply(pop, frees=True))
        return found
