"""The schedule source: schedules that are added, listed and deleted at run time."""

from __future__ import annotations

import asyncio
import logging
import os

from taskiq import ScheduledTask, ScheduleSource
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.serializers import JSONSerializer

from streamkeep.engine.api.views import Sync
from streamkeep.integrations.values import OpenedStore, Values

log = logging.getLogger("streamkeep.taskiq")


class StreamkeepScheduleSource(ScheduleSource):
    """Schedules of taskiq in a store.

    A schedule with a `time` is deleted after its task was sent. If the scheduler is killed between
    the two, the task is sent again. Run one scheduler: each one sends every task.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prefix: str = "taskiq",
        serializer: TaskiqSerializer | None = None,
        sync: Sync | None = None,
    ) -> None:
        """Name a store; it is opened at the first use.

        Args:
            path: the directory of the store, or a URL `streamkeep:////path`.
            prefix: schedules of applications with different prefixes are apart.
            serializer: by default JSON.
            sync: when a schedule is durable; see `streamkeep.open`.
        """
        self._opened = OpenedStore(path, sync)
        self._values = Values(f"{prefix}:schedules")
        self._serializer = serializer or JSONSerializer()

    async def startup(self) -> None:
        await asyncio.to_thread(lambda: self._opened.store)

    async def shutdown(self) -> None:
        await asyncio.to_thread(self._opened.close)

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return all schedules; one that cannot be read is logged and left out."""
        found = await asyncio.to_thread(self._opened.use, self._all)
        schedules = []
        for data in found:
            try:
                schedules.append(ScheduledTask.model_validate(self._serializer.loadb(data)))
            except Exception as error:
                log.error("a schedule cannot be read: %s: %r", error, data[:200])
        return schedules

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Store a schedule, in place of one that has its ID."""
        data = self._serializer.dumpb(schedule.model_dump(mode="json"))

        def put() -> None:
            self._opened.apply(lambda txn: self._values.put(txn, schedule.schedule_id, data))

        await asyncio.to_thread(self._opened.use, put)

    async def delete_schedule(self, schedule_id: str) -> None:
        def delete() -> None:
            self._opened.apply(lambda txn: self._values.delete(txn, schedule_id), frees=True)

        await asyncio.to_thread(self._opened.use, delete)

    def _all(self) -> list[bytes]:
        self._opened.check()  # there may be a store in place of this one
        found = self._opened.read(lambda one: [data for _, data in self._values.last_first(one)])
        return found[::-1]

    async def post_send(self, task: ScheduledTask) -> None:
        """Delete a schedule that has one time, after its task was sent."""
        if task.time is not None:
            await self.delete_schedule(task.schedule_id)
