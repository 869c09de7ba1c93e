"""The connection of a replica to its primary: PSYNC (Redis: `replication.c`).

    PING, AUTH, INFO replication
    REPLCONF capa eof capa psync2                    +OK
    PSYNC replication-id offset                      +FULLRESYNC id offset, then a file, or
                                                     +CONTINUE [id]
    the file        see `synchronize`
                    an empty line is sent each second, until the file is in the store
    from then on    the commands that change something; REPLCONF ACK offset is sent each second

A thread takes what comes into the spool as fast as it comes, and acknowledges what is in the store.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from streamkeep.format.core.errors import (
    ArgumentError,
    CorruptionError,
    StreamkeepError,
    UnreachableError,
)
from streamkeep.format.redis.rdb_values import Source
from streamkeep.format.redis.resp import encode_command
from streamkeep.replication.address import Address
from streamkeep.replication.spool import Spool

_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 60.0  # Redis's repl-timeout; a primary sends something each 10 s
_ACK_S: Final = 1.0
_PIECE: Final = 1 << 16
_LONGEST_LINE: Final = 1 << 16
_TICK_S: Final = 0.5
_FULL_S: Final = 0.01
# Answers to a client that will get another one neither now nor later.
_FINAL: Final = ("WRONGPASS", "NOAUTH", "NOPERM", "ERR invalid password", "ERR unknown command")


class LinkLost(UnreachableError):
    """The connection is lost, or was not made; another attempt may succeed."""


class RefusedError(StreamkeepError):
    """The server does not let this client follow it."""


class Link:
    """One connection.

    Attributes:
        acknowledged: the offset that the store has.
        spool: what came and was not read.
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
        self.spool = Spool(folder, most)
        self._replies = Source(self._more, "replies")
        self._thread: threading.Thread | None = None
        self._wake, self._woken = socket.socketpair()
        self.acknowledged = 0
        self.loading = False
        try:
            if address.password:
                words = filter(None, (address.user, address.password))
                self._ask("AUTH", *(word.encode("utf-8", "surrogateescape") for word in words))
            self._ask("PING")
        except BaseException:
            self.close()
            raise

    def interrupt(self) -> None:
        """End the connection, as the server may do, while another thread uses it."""
        self.acknowledge_now()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.interrupt()
        if self._thread is not None:
            self._thread.join()
        for one in (self._socket, self._wake, self._woken):
            one.close()
        self.spool.close()

    # --- before the stream ----------------------------------------------------------------------

    def offset(self) -> int:
        """Return the offset up to which the server has commands now."""
        for line in self._ask("INFO", "replication").splitlines():
            name, _, value = line.partition(":")
            if name == "master_repl_offset" and value.isdigit():
                return int(value)
        raise RefusedError("INFO replication has no master_repl_offset: not a Redis server")

    def psync(self, replication_id: str, offset: int) -> tuple[bool, str, int]:
        """Ask for what comes after an offset, and begin to take it.

        Args:
            replication_id: empty to begin anew.

        Returns:
            Whether a file with all keys comes before the commands, the replication ID, and the
            offset from which on commands come.
        """
        self._ask("REPLCONF", "capa", "eof", "capa", "psync2")
        wanted = (replication_id, offset + 1) if replication_id else ("?", -1)
        words = self._ask("PSYNC", *wanted).split()
        if words[:1] == ["FULLRESYNC"] and len(words) == 3 and words[2].isdigit():
            self.loading, replication_id, offset = True, words[1], int(words[2])
        elif words[:1] == ["CONTINUE"] and replication_id:
            replication_id = words[1] if len(words) > 1 else replication_id
            self.acknowledged = offset
        else:
            raise RefusedError(f"PSYNC was answered with {' '.join(words)[:80]!r}")
        self._thread = threading.Thread(target=self._receive, name="streamkeep-follow", daemon=True)
        self._thread.start()
        return self.loading, replication_id, offset

    def _ask(self, name: str, *words: bytes | str | int) -> str:
        """Send a command; return its answer, which is one line or a string."""
        replies = self._replies
        try:
            self._socket.sendall(encode_command(name, *words))
            line = b""
            while not line:  # empty ones come while the server prepares a file
                line = replies.line(_LONGEST_LINE).rstrip(b"\r")
            if line[:1] == b"$" and line[1:].isdigit():
                line = replies.take(int(line[1:]) + 2)[:-2]
        except OSError as error:
            problem = f"{name}: {error.strerror or error}"
            # A server without our certificate sends an alert and resets: either may come first.
            refused = isinstance(error, (ssl.SSLError, ConnectionError))
            if refused and self._address.tls and not self._address.files[0]:
                problem += (
                    "; next: if the server asks for certificates, add ?ssl_certfile=FILE"
                    "&ssl_keyfile=FILE to the address"
                )
            raise LinkLost(problem) from error
        except CorruptionError as error:
            problem = "not a Redis server: it answers with a line without an end"
            raise RefusedError(problem) from error
        text = line.decode(errors="replace")
        if text.startswith("-"):
            problem = f"{name} was refused: {text[1:]}"
            raise (RefusedError if text[1:].startswith(_FINAL) else LinkLost)(problem)
        return text.removeprefix("+")

    def _more(self, size: int) -> bytes:
        data = self._socket.recv(size)
        if not data:
            raise LinkLost("the server closed the connection")
        return data

    # --- the stream -----------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take what comes, until the connection ends; run by the thread."""
        try:
            self._take_in(self._replies.rest())
            due = came = time.monotonic()
            either = selectors.PollSelector()  # select() cannot wait for files above 1023
            either.register(self._socket, selectors.EVENT_READ)
            either.register(self._woken, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= due:
                    self._acknowledge()
                    due = now + _ACK_S
                if now - came > _SILENCE_S:
                    raise LinkLost(f"the server was silent for {_SILENCE_S:.0f} s")
                most = 1 << 20
                if self.loading:
                    most = min(most, self.spool.room())
                    if not most:
                        came = now
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
                self._take_in(self._more(most))
                came = time.monotonic()
        except LinkLost as error:
            self.spool.end(error)
        except (OSError, ValueError) as error:  # ValueError: of a socket that was closed
            text = error.strerror if isinstance(error, OSError) else None
            self.spool.end(LinkLost(text or str(error)))

    def _take_in(self, data: bytes) -> None:
        try:
            fits = self.spool.put(data)
        except OSError as error:
            raise LinkLost(f"{error.strerror}; what came is applied first") from error
        if not fits:
            raise LinkLost("too much came that is not applied yet; it is applied first")

    def _acknowledge(self) -> None:
        if self.loading:
            self._socket.sendall(b"\n")  # a sign of life, as Redis sends it; it has nothing yet
            return
        offset = self.acknowledged
        words = ("FACK", offset) if self._durable else ()
        self._socket.sendall(encode_command("REPLCONF", "ACK", offset, *words))

    def acknowledge_now(self) -> None:
        """Tell the server soon which offset the store has."""
        with suppress(OSError):
            self._wake.send(b"x")

    def read(self, stop: threading.Event) -> bytes:
        """Return bytes, as soon as there are some.

        Raises:
            LinkLost: the connection ended, and everything was read.
            Stopped: `stop` was set, and nothing has come.
        """
        while True:
            data = self.spool.take(_TICK_S)
            if data:
                return data
            if stop.is_set():
                raise Stopped


class Stopped(Exception):
    """The follower is to end."""


def _connect(address: Address) -> socket.socket:
    context = _tls(address) if address.tls else None
    try:
        if address.path:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(_CONNECT_S)
            made.connect(address.path)
        else:
            made = socket.create_connection((address.host, address.port), _CONNECT_S)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if context is not None:
                made = context.wrap_socket(made, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise ArgumentError(f"{address.shown()}: its certificate: {error.verify_message}") from None
    except OSError as error:
        raise LinkLost(f"cannot connect: {error.strerror or error}") from error
    made.settimeout(_SILENCE_S)
    return made


def _tls(address: Address) -> ssl.SSLContext:
    certificate, key, authorities = address.files
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except OSError as error:
        raise ArgumentError(
            f"{address.shown()}: a file of ssl_... cannot be read: {error}"
        ) from error
    return context
