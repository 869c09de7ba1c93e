"""The connection of a replica to its primary: PSYNC (Redis: `replication.c`).

    PING, AUTH, INFO replication
    REPLCONF capa eof capa psync2                    +OK
    PSYNC replication-id offset                      +FULLRESYNC id offset, then a file, or
                                                     +CONTINUE [id]
    the file        $length CRLF bytes, or $EOF:mark CRLF bytes mark (40 bytes)
    from then on    the commands that change something; REPLCONF ACK offset is sent each second

A thread takes what comes into the spool as fast as it comes, and acknowledges what is in the store.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from streamkeep.format.core.errors import ArgumentError, StreamkeepError, UnreachableError
from streamkeep.format.redis.resp import encode_command
from streamkeep.replication.address import Address
from streamkeep.replication.spool import Spool

_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 60.0  # Redis's repl-timeout; a primary sends something each 10 s
_ACK_S: Final = 1.0
_PIECE: Final = 1 << 16
_MARK_SIZE: Final = 40
_LONGEST_LINE: Final = 1 << 16
_TICK_S: Final = 0.5
_FULL_S: Final = 0.01
# Answers to a client that will get another one neither now nor later.
_FINAL: Final = ("WRONGPASS", "NOAUTH", "NOPERM", "ERR invalid password", "ERR unknown command")


class LinkLost(UnreachableError):
    """The connection is lost, or was not made; another attempt may succeed."""


class RefusedError(StreamkeepError):
    """The server does not let this client follow it."""


class Psync(NamedTuple):
    """The answer to PSYNC.

    Attributes:
        full: whether a file with all keys comes before the commands.
        offset: of the file; for a continuation, the one that was asked for.
    """

    full: bool
    replication_id: str
    offset: int


class Link:
    """One connection.

    Attributes:
        acknowledged: the offset that the store has.
        came: when bytes came last, on the monotonic clock.
        loading: a full synchronization is not applied yet. Its file may be larger than the spool:
            while that is full, the server waits with the rest.
    """

    def __init__(self, address: Address, folder: Path, most: int, *, durable: bool) -> None:
        """Connect.

        Args:
            folder, most: of the spool.
            durable: whether what the store has is on disk, so that WAITAOF counts it.

        Raises:
            LinkLost: the server cannot be reached, or is not ready.
            RefusedError: it refuses this client.
        """
        self._address = address
        self._durable = durable
        self._socket = _connect(address)
        self._spool = Spool(folder, most)
        self._begun = b""  # read after the answer to PSYNC
        self._thread: threading.Thread | None = None
        self._wake, self._woken = socket.socketpair()
        self.acknowledged = 0
        self.came = time.monotonic()
        self.loading = False
        try:
            self._introduce()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self._wake.send(b"x")
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        for one in (self._socket, self._wake, self._woken):
            one.close()
        self._spool.close()

    # --- before the stream ----------------------------------------------------------------------

    def _introduce(self) -> None:
        address = self._address
        if address.password:
            self._ask("AUTH", *filter(None, (address.user, address.password)))
        self._ask("PING")

    def offset(self) -> int:
        """Return the offset up to which the server has commands now."""
        for line in self._ask("INFO", "replication").splitlines():
            name, _, value = line.partition(":")
            if name == "master_repl_offset" and value.isdigit():
                return int(value)
        raise RefusedError("INFO replication has no master_repl_offset: not a Redis server")

    def psync(self, replication_id: str, offset: int) -> Psync:
        """Ask for what comes after an offset, and begin to take it.

        Args:
            replication_id: empty to begin anew.
        """
        self._ask("REPLCONF", "capa", "eof", "capa", "psync2")
        wanted = (replication_id, offset + 1) if replication_id else ("?", -1)
        words = self._ask("PSYNC", *wanted).split()
        if words[:1] == ["FULLRESYNC"] and len(words) == 3 and words[2].isdigit():
            answer = Psync(True, words[1], int(words[2]))
        elif words[:1] == ["CONTINUE"] and replication_id:
            answer = Psync(False, words[1] if len(words) > 1 else replication_id, offset)
            self.acknowledged = offset
        else:
            raise RefusedError(f"PSYNC was answered with {' '.join(words)[:80]!r}")
        self.loading = answer.full
        self._thread = threading.Thread(target=self._receive, name="streamkeep-follow", daemon=True)
        self._thread.start()
        return answer

    def _ask(self, *words: str | int) -> str:
        """Send a command; return its answer, which is one line or a string."""
        try:
            self._socket.sendall(encode_command(*words))
            line = self._line()
            while not line:  # sent while a file is prepared
                line = self._line()
            if line[:1] == b"$" and line[1:].isdigit():
                text = self._exactly(int(line[1:]) + 2)[:-2].decode(errors="replace")
            else:
                text = line.decode(errors="replace")
        except OSError as error:
            raise LinkLost(f"{words[0]}: {error.strerror or error}") from error
        if text.startswith("-"):
            problem = f"{words[0]} was refused: {text[1:]}"
            if text[1:].startswith(_FINAL):
                raise RefusedError(problem)
            raise LinkLost(problem)
        return text.removeprefix("+")

    def _line(self) -> bytes:
        while b"\n" not in self._begun:
            self._more()
            if len(self._begun) > _LONGEST_LINE:
                raise RefusedError("not a Redis server: it answers with a line without an end")
        line, _, self._begun = self._begun.partition(b"\n")
        return line.rstrip(b"\r")

    def _exactly(self, size: int) -> bytes:
        while len(self._begun) < size:
            self._more()
        data, self._begun = self._begun[:size], self._begun[size:]
        return data

    def _more(self) -> None:
        data = self._socket.recv(_PIECE)
        if not data:
            raise LinkLost("the server closed the connection")
        self._begun += data

    # --- the stream -----------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take what comes, until the connection ends; run by the thread."""
        try:
            if self._begun:
                self._take_in(self._begun)
            due = time.monotonic()
            either = selectors.PollSelector()  # select() cannot wait for files above 1023
            either.register(self._socket, selectors.EVENT_READ)
            either.register(self._woken, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= due:
                    self._acknowledge()
                    due = now + _ACK_S
                if now - self.came > _SILENCE_S:
                    raise LinkLost(f"the server was silent for {_SILENCE_S:.0f} s")
                most = 1 << 20
                if self.loading:
                    most = min(most, self._spool.room())
                    if not most:
                        self.came = now
                        time.sleep(_FULL_S)
                        continue
                pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
                if not pending:
                    ready = [one.fileobj for one, _ in either.select(due - now)]
                    if self._woken in ready:
                        self._woken.recv(_PIECE)
                        due = now
                    if self._socket not in ready:
                        continue
                data = self._socket.recv(most)
                if not data:
                    raise LinkLost("the server closed the connection")
                self.came = time.monotonic()
                self._take_in(data)
        except LinkLost as error:
            self._spool.end(error)
        except (OSError, ValueError) as error:  # ValueError: of a socket that was closed
            text = error.strerror if isinstance(error, OSError) else None
            self._spool.end(LinkLost(text or str(error)))

    def _take_in(self, data: bytes) -> None:
        try:
            fits = self._spool.put(data)
        except OSError as error:
            raise LinkLost(f"{error.strerror}; what came is applied first") from error
        if not fits:
            raise LinkLost("too much came that is not applied yet; it is applied first")

    def _acknowledge(self) -> None:
        offset = self.acknowledged
        words = ("FACK", offset) if self._durable else ()
        self._socket.sendall(encode_command("REPLCONF", "ACK", offset, *words))

    def acknowledge_now(self) -> None:
        """Tell the server soon which offset the store has."""
        with suppress(OSError):
            self._wake.send(b"x")

    @property
    def waiting(self) -> int:
        """Bytes that came and were not read."""
        return self._spool.size

    @property
    def came_ms(self) -> int:
        """Unix time at which what was read last came."""
        return int(self._spool.came * 1000)

    def read(self, stop: threading.Event) -> bytes:
        """Return bytes, as soon as there are some.

        Raises:
            LinkLost: the connection ended, and everything was read.
            Stopped: `stop` was set, and nothing has come.
        """
        while True:
            data = self._spool.take(_TICK_S)
            if data:
                return data
            if stop.is_set():
                raise Stopped


class Stopped(Exception):
    """The follower is to end."""


class FileReader:
    """The file of a full synchronization, as it comes; what follows it stays in `rest`."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        """Read the head of the file from `read`, which returns some bytes."""
        self._read = read
        self.rest = b""
        head = b""
        while not head.lstrip(b"\n").count(b"\n"):
            head = head.lstrip(b"\n") + read()
        line, _, self.rest = head.lstrip(b"\n").partition(b"\n")
        line = line.rstrip(b"\r")
        self._mark = b""
        self.total: int | None = None
        if line.startswith(b"$EOF:") and len(line) == len("$EOF:") + _MARK_SIZE:
            self._mark = line[len("$EOF:") :]
        elif line[:1] == b"$" and line[1:].isdigit():
            self.total = int(line[1:])
        else:
            raise LinkLost(f"found {line[:60]!r}, expected a file")
        self.done = 0
        self._whole = False

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes of the file; b"" at its end."""
        if self._whole:
            return b""
        if self.total is not None:
            return self._counted(min(size, self.total - self.done))
        while True:
            end = self.rest.find(self._mark)
            if end == 0:
                self.rest = self.rest[_MARK_SIZE:]
                self._whole = True
                return b""
            ready = end if end > 0 else len(self.rest) - _MARK_SIZE + 1
            if ready > 0:
                return self._cut(min(size, ready))
            self.rest += self._read()

    def _counted(self, size: int) -> bytes:
        if not size:
            self._whole = True
            return b""
        if not self.rest:
            self.rest = self._read()
        return self._cut(min(size, len(self.rest)))

    def _cut(self, size: int) -> bytes:
        data, self.rest = self.rest[:size], self.rest[size:]
        self.done += size
        return data


def _connect(address: Address) -> socket.socket:
    try:
        if address.path:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(_CONNECT_S)
            made.connect(address.path)
        else:
            made = socket.create_connection((address.host, address.port), _CONNECT_S)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if address.tls:
                context = ssl.create_default_context()
                made = context.wrap_socket(made, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise ArgumentError(f"{address.shown()}: its certificate: {error.verify_message}") from None
    except OSError as error:
        raise LinkLost(f"cannot connect: {error.strerror or error}") from error
    made.settimeout(_SILENCE_S)
    return made
