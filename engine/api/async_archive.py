"""The archive methods of the store for asyncio.

They read and write files for as long as that takes, so each runs in a thread of its own, and the
commands of other tasks go on meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from streamkeep.engine.api.archive_commands import PathLike, Progress
from streamkeep.engine.api.command_base import Id, Key
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.adopt import Adopted
from streamkeep.engine.archive.restore import RestoreReport
from streamkeep.engine.archive.segments import ArchivedStream, Verified
from streamkeep.format.core.entry import Text
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, Segment

Item = TypeVar("Item")
_END: Any = object()


class AsyncArchiveMethods(Generic[Text]):
    """What `AsyncStore` can do with its archive; see the methods of `Store`."""

    _store: Store[Text]

    async def archived_segments(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        start: Id = "-",
        end: Id = "+",
    ) -> list[SegmentRecord]:
        """Return the segments of the archive; see `Store.archived_segments`."""
        call = partial(self._store.archived_segments, key, stream_number=stream_number)
        return await asyncio.to_thread(call, start=start, end=end)

    async def archived_streams(self) -> list[ArchivedStream]:
        """Return what the archive holds of each stream; see `Store.archived_streams`."""
        return await asyncio.to_thread(self._store.archived_streams)

    def segment_path(self, record: SegmentRecord) -> Path:
        """Return where the file of a segment is."""
        return self._store.segment_path(record)

    async def open_segment(self, record: SegmentRecord) -> Segment:
        """Return a segment to read from, whose methods are not coroutines."""
        return await asyncio.to_thread(self._store.open_segment, record)

    def verify_archive(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        progress: Progress | None = None,
    ) -> AsyncIterator[Verified]:
        """Read segments to the last byte; see `Store.verify_archive`."""
        call = partial(self._store.verify_archive, key, stream_number=stream_number)
        return _in_threads(partial(call, progress=progress))

    async def restore_archive(
        self,
        key: Key,
        source: Key | None = None,
        *,
        from_store: AsyncArchiveMethods[Any] | None = None,
        stream_number: int | None = None,
        start: Id = "-",
        end: Id = "+",
        progress: Progress | None = None,
    ) -> RestoreReport:
        """Write archived entries into the stream `key`; see `Store.restore_archive`."""
        return await asyncio.to_thread(
            self._store.restore_archive,
            key,
            source,
            from_store=None if from_store is None else from_store._store,
            stream_number=stream_number,
            start=start,
            end=end,
            progress=progress,
        )

    def adopt_segments(
        self,
        *paths: PathLike,
        key: Key | None = None,
        progress: Progress | None = None,
        max_block_bytes: int = MAX_BLOCK_BYTES,
    ) -> AsyncIterator[Adopted]:
        """Take segment files into the archive; see `Store.adopt_segments`."""
        call = partial(self._store.adopt_segments, *paths, key=key, progress=progress)
        return _in_threads(partial(call, max_block_bytes=max_block_bytes))

    def export_segments(
        self,
        folder: PathLike,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        start: Id = "-",
        end: Id = "+",
        progress: Progress | None = None,
    ) -> AsyncIterator[Path]:
        """Copy verified segments into a folder; see `Store.export_segments`."""
        call = partial(self._store.export_segments, folder, key, stream_number=stream_number)
        return _in_threads(partial(call, start=start, end=end, progress=progress))

    async def drop_segments(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        before: Id = "+",
    ) -> list[SegmentRecord]:
        """Remove old segments for good; see `Store.drop_segments`."""
        call = partial(self._store.drop_segments, key, stream_number=stream_number)
        return await asyncio.to_thread(call, before=before)


class _Steps(Generic[Item]):
    """An iterator whose steps, and whose end, are run in threads, one at a time."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._lock = threading.Lock()
        self._closed = False

    def next(self) -> Any:
        """Return the next item, or `_END`."""
        with self._lock:
            return _END if self._closed else next(self._items, _END)

    def close(self) -> None:
        """End it, after the step that is being run."""
        with self._lock:
            self._closed = True
            close = getattr(self._items, "close", None)
            if close is not None:
                close()


async def _in_threads(make: Callable[[], Iterator[Item]]) -> AsyncIterator[Item]:
    """Yield what an iterator yields, each step in a thread.

    Who cancels the task does not wait for the step that is being run.
    """
    steps = _Steps(await asyncio.to_thread(make))
    try:
        while (item := await asyncio.to_thread(steps.next)) is not _END:
            yield item
    except asyncio.CancelledError:
        asyncio.get_running_loop().run_in_executor(None, steps.close)
        raise
    except GeneratorExit:
        steps.close()  # between two steps
        raise
    else:
        await asyncio.to_thread(steps.close)
