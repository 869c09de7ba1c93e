"""A real redis-server for the tests, on a Unix socket in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from redis.connection import UnixDomainSocketConnection

from model.steps import Failed
from patience import PATIENCE_S

# The program to compare with; without it, the redis-server of the machine.
PROGRAM: Final = "STREAMKEEP_REDIS_SERVER"


Argument = bytes | str | int


class RealRedis:
    """A connection to the server that answers as the protocol does.

    Replies are not turned into dicts, which would lose repeated fields and the order of pairs,
    and an error comes back as `Failed`, a whole line, because tests compare those, too.
    """

    def __init__(self, socket: Path, password: str | None = None) -> None:
        self.socket = socket
        factory: Any = UnixDomainSocketConnection  # it has no types
        self._connection = factory(path=str(socket), protocol=2, password=password)
        self._connection.connect()
        self.version = self._read_version()

    def call(self, *words: Argument) -> Any:
        self._connection.send_command(*words)
        return self._reply()

    def call_all(self, commands: list[list[Argument]]) -> list[Any]:
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [self._reply() for _ in commands]

    def close(self) -> None:
        self._connection.disconnect()

    def _reply(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            # redis-py takes the code off the line when it knows it.
            code = error.status_code
            return Failed(f"{code} {error}" if code else str(error))

    def _read_version(self) -> tuple[int, ...]:
        info = self.call(b"INFO", b"server")
        assert isinstance(info, bytes)
        lines = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
        return tuple(int(part) for part in lines[b"redis_version"].split(b"."))


def wait_for(socket: Path, server: subprocess.Popen[bytes], log: Path) -> RealRedis:
    """Return a connection as soon as the server takes one."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return RealRedis(socket)
        except (redis.ConnectionError, OSError) as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start: {log.read_text()}") from error
            time.sleep(0.01)


@contextmanager
def running_redis(
    settings: dict[str, str] | None = None, *, file: Path | None = None
) -> Iterator[RealRedis]:
    """Run a server until the block ends; skip the test where there is no program for it.

    Args:
        settings: of the server, in addition to those that all tests need.
        file: the RDB file to start from; it starts empty without one.
    """
    program = os.environ.get(PROGRAM) or shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed; these tests compare with it")
    # Not pytest's tmp_path: the path of a socket may have 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="streamkeep-redis-"))
    socket, log = folder / "socket", folder / "log"
    if file is not None:
        shutil.copy(file, folder / "dump.rdb")
    options = {
        "--port": "0",
        "--unixsocket": str(socket),
        "--dir": str(folder),
        "--logfile": str(log),
        "--save": "",
        "--appendonly": "no",
        "--sanitize-dump-payload": "yes",
        **{f"--{name}": value for name, value in (settings or {}).items()},
    }
    server = subprocess.Popen(
        [program, *(word for pair in options.items() for word in pair)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        connection = wait_for(socket, server, log)
        yield connection
        connection.close()
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
        shutil.rmtree(folder)
