"""A server in uvloop that answers any request with the same bytes: what an event loop allows.

`python -m benchmarks.constant_server SOCKET PORT FILE` with the reply in a file. A reply follows
each chunk that is read, so that its clients must not send several commands at once.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import uvloop


class _Constant(asyncio.Protocol):
    """A client that gets the reply."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what the replies are written to."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Reply; redis-benchmark begins with several CONFIG GET, and goes on after errors."""
        asked = data.count(b"CONFIG")
        self._transport.write(b"-ERR there are no settings\r\n" * asked if asked else self._reply)


async def main(path: str, port: str, file: str) -> None:
    """Serve until the process is ended."""
    reply = Path(file).read_bytes()
    loop = asyncio.get_running_loop()
    unix = await loop.create_unix_server(lambda: _Constant(reply), path)
    tcp = await loop.create_server(lambda: _Constant(reply), "127.0.0.1", int(port))
    await asyncio.gather(unix.serve_forever(), tcp.serve_forever())


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
