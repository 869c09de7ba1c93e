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

    async def _scan(self, *args):
        entries = super()._scan(*args)
        try:
            for number, entry in enumerate(entries):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                yield entry
        finally:
            entries.close()

    def __aiter__(self):
        """Iterate over the keys, ascending, on one snapshot."""
        return self.scan_iter()

    async def scan_iter(self, *args, **options):
        names = super().scan_iter(*args, **options)
        try:
            for number, name in enumerate(names):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                yield name
        finally:
            names.close()
