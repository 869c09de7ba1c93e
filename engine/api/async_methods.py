"""The methods of the store for asyncio that are not commands of Redis, made from those of `Store`.

Administrative methods and those on frames read and write much, which can take long. Each runs in a
thread of its own, so that the commands of other tasks continue. Type checkers read
`async_methods.pyi`, which `scripts/stubs.py` makes from the sources.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from inspect import isfunction
from typing import Any, Generic, TypeVar

from streamkeep.engine.api.admin_commands import AdminCommands
from streamkeep.engine.api.follow import FollowCommands
from streamkeep.engine.api.frame_commands import FrameCommands
from streamkeep.engine.api.work import WorkCommands
from streamkeep.engine.system.locks import make_reentrant_lock
from streamkeep.format.core.entry import Text

Item = TypeVar("Item")
Method = Callable[..., Any]
_END = object()


class AsyncMethods(FollowCommands[Text], WorkCommands[Text]):
    """The methods of `Store` that are no commands of Redis, for asyncio."""

    _store: AdminCommands[Text]


def _twin(method: Method) -> Method:
    """Return a method for asyncio that runs a method of the store in a thread."""

    def bound(twin: AsyncMethods, args: tuple[object, ...], options: dict[str, object]) -> Method:
        given = {name: _of_store(value) for name, value in options.items()}
        return partial(method, twin._store, *map(_of_store, args), **given)

    @wraps(method)
    async def run(self: AsyncMethods, *args: object, **options: object) -> object:
        return await asyncio.to_thread(bound(self, args, options))

    @wraps(method)
    def iterate(self: AsyncMethods, *args: object, **options: object) -> AsyncIterator[object]:
        return _in_threads(bound(self, args, options))

    return iterate if method.__annotations__["return"].startswith("Iterator") else run


def _of_store(value: object) -> object:
    """Return the store of an asyncio store, and any other argument as it is."""
    return value._store if isinstance(value, AsyncMethods) else value


for _name, _method in {**vars(AdminCommands), **vars(FrameCommands)}.items():
    if isfunction(_method) and not _name.startswith("_"):
        setattr(AsyncMethods, _name, _twin(_method))


class _Steps(Generic[Item]):
    """An iterator whose steps and end run in threads, one at a time."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._lock = make_reentrant_lock("async steps")
        self._closed = False

    def next(self) -> object:
        """Return the next item, or `_END`."""
        with self._lock:
            return _END if self._closed else next(self._items, _END)

    def close(self) -> None:
        """Close the iterator, after the step that is running."""
        with self._lock:
            self._closed = True
            close = getattr(self._items, "close", None)
            if close is not None:
                close()


async def _in_threads(make: Callable[[], Iterator[Item]]) -> AsyncIterator[Item]:
    """Yield what an iterator yields, each step in a thread.

    A task that is cancelled does not wait for the step that is running.
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
