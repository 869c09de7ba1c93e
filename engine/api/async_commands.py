"""Every command of the store as a coroutine.

A command method checks its arguments and returns what `_read` or `_write` return. Where those
return coroutines, as in `AsyncStore`, the methods do, too: nothing is written twice. What type
checkers see is `async_commands.pyi`, made from the sources of the commands by `make docs`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from streamkeep.engine.api.stream_commands import ScanEntry, StreamCommands
from streamkeep.format.core.entry import Text

_AT_ONCE = 256  # entries between which other tasks have a turn


class AsyncScanEntry(ScanEntry[Text]):
    """An entry that `scan` stands on: its ID, its pairs, and `await entry.delete()`."""

    __slots__ = ()

    async def delete(self) -> bool:
        """Delete this entry (XDEL); False when it was gone already."""
        return bool(await self._commands.xdel(self._name, self.id))


class AsyncCommands(StreamCommands[Text]):
    """Every stream command as a coroutine; arguments that are wrong raise at the call."""

    async def xgroup_help(self) -> list[str]:
        return super().xgroup_help()

    async def xinfo_help(self) -> list[str]:
        return super().xinfo_help()

    async def _scan(self, *args: Any) -> Any:
        entries = super()._scan(*args)
        try:
            for number, entry in enumerate(entries):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                flat = [text for pair in entry.pairs for text in pair]
                yield AsyncScanEntry(self, args[0], entry.id, flat)
        finally:
            entries.close()

    async def scan_iter(self, *args: Any, **options: Any) -> Any:
        names = super().scan_iter(*args, **options)
        try:
            for number, name in enumerate(names):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                yield name
        finally:
            names.close()
