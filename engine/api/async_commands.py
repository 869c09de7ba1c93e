"""Every command of the store as a coroutine.

A command method checks its arguments and returns what `_run` returns. Where that is a coroutine,
as in `AsyncStore`, the method returns one, too, so nothing is written twice. Type checkers read
`async_commands.pyi`, which `scripts/stubs.py` makes from the sources of the commands.
"""

from __future__ import annotations

import asyncio
from typing import Any

from streamkeep.engine.api.read_commands import ScanEntry
from streamkeep.engine.api.stream_commands import StreamCommands
from streamkeep.format.core.entry import Text

_AT_ONCE = 256  # entries between which other tasks have a turn


class AsyncScanEntry(ScanEntry[Text]):
    """The entry that `scan` has come to: an `Entry`, with `await entry.delete()`."""

    __slots__ = ()

    async def delete(self: Any) -> bool:
        """Delete this entry (XDEL); return False if it was already deleted."""
        delete, name = self._of
        return bool(await delete(name, self.id))


class AsyncCommands(StreamCommands[Text]):
    """Every stream command as a coroutine. Wrong arguments raise at the call."""

    _scan_entry = AsyncScanEntry

    def _scan(self, *args):
        return _in_turns(super()._scan(*args))

    def __aiter__(self):
        """Iterate over the keys, ascending, on one snapshot."""
        return self.scan_iter()

    def scan_iter(self, *args, **options):
        return _in_turns(super().scan_iter(*args, **options))


async def _in_turns(items):
    """Yield what an iterator yields; other tasks have a turn in between."""
    try:
        for number, item in enumerate(items):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            yield item
    finally:
        items.close()
