"""`streamkeep serve`: sockets, signals, and the life of the servers of one store.

`serve` opens the store, listens, and returns when it has been asked to stop: by SIGTERM, SIGINT or
SHUTDOWN. Then it takes no more connections, sends the replies that wait for the disk, and closes
the store.

An address other than loopback needs a password, and TLS unless that is refused explicitly; that
holds for the sockets of systemd (LISTEN_FDS), too. A Unix socket has mode 0600. systemd learns when
the server is ready and when it stops (NOTIFY_SOCKET).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import streamkeep
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.format.core.errors import ArgumentError, StoreError
from streamkeep.format.redis.stream_dump import TARGETS
from streamkeep.recovery import shipping
from streamkeep.recovery.backups.backup import backup, check_apart
from streamkeep.replication import following
from streamkeep.server.access import Access
from streamkeep.server.handshakes import BACKLOG, SecureListener
from streamkeep.server.resp.connection import Connection
from streamkeep.server.resp.info import server_metrics
from streamkeep.server.resp.server import Server
from streamkeep.server.resp.settings import OWN_FILES, Settings, limit_of_files
from streamkeep.server.resp.turn import TABLE
from streamkeep.supported import install_hint

if TYPE_CHECKING:
    from streamkeep.server.http.serving import HttpServer

DEFAULT_BIND: Final = "127.0.0.1:6379"
_FIRST_HANDED: Final = 3  # the first descriptor that systemd hands over
_HTTP_FILES: Final = 4200  # a few more than `http.serving` has connections

log = logging.getLogger("streamkeep.server")


@dataclass(slots=True)
class Options:
    """How a store is served.

    Attributes:
        bind: addresses, each `host:port`; `[::1]:6379` for IPv6.
        unix: the path of a Unix socket.
        http: `host:port` of the HTTP server; None for none.
        access: users and passwords.
        tls: certificate, key, and the authority that clients' certificates must be of.
        plain: refuse TLS: an address other than loopback is served without.
        backup: the folder for BGSAVE.
        unix_mode: who may connect to the Unix socket.
        ship: keep a copy of the store there; None for none.
        replica_format: the oldest Redis that may be a replica of the server.
        replicaof: the address of a server to follow; empty for none, and None for what the store
            was following when it was served last.
        readonly: no client may write; a standby of a copy can be served only so.
        archive_every: maintain and archive the store at this interval, in seconds.
        write: callers over HTTP may change the store.
        hosts: further names by which HTTP may be called, such as that of the machine.
        ready: is called with the server when it accepts connections.
    """

    bind: list[str] = field(default_factory=list)
    unix: Path | None = None
    http: str | None = None
    access: Access = field(default_factory=Access)
    tls: tuple[Path, Path, Path | None] | None = None
    plain: bool = False
    backup: Path | None = None
    write: bool = False
    readonly: bool = False
    hosts: tuple[str, ...] = ()
    unix_mode: int = 0o600
    ship: str | None = None
    archive_every: float | None = None
    replica_format: str = "7.0"
    replicaof: str | None = None
    max_clients: int = 10_000
    timeout_s: int = 0
    allow_flush: bool = False
    ready: Callable[[Server], None] | None = None


def run(path: Path, options: Options, *, sync: Sync) -> None:
    """Serve the store at `path` until a signal or SHUTDOWN; in uvloop where it is installed.

    Raises:
        ArgumentError: an address is not safe, or not an address.
        StoreError: the store cannot be opened, or a socket or the backup cannot be had.
    """
    check(options)
    if options.backup is not None:
        check_apart(path, options.backup)
    opened = (
        streamkeep.open(path, readonly=True)
        if options.readonly
        else streamkeep.open(path, sync=sync, lease=False, archive_every=options.archive_every)
    )
    with (
        opened as store,
        contextlib.nullcontext() if options.ship is None else shipping(store, options.ship),
    ):
        # No collection looks at what was imported: that takes 12 ms, in which no client is served.
        gc.freeze()
        # Nor at the streams and groups in the caches, as long as these only change. Python's 700
        # new objects took a fifth of the time with 10,000 streams.
        gc.set_threshold(200_000, 10, 10)
        try:
            import uvloop
        except ImportError:
            asyncio.run(serve(store, options))
        else:
            uvloop.run(serve(store, options))


def check(options: Options) -> None:
    """Raise for an address that strangers could use, or change the store with."""
    for user in options.access.users.values():
        user.check_names(TABLE)
    anonymous = options.access.anonymous
    if options.http and options.write and anonymous is not None and anonymous.may_write:
        raise ArgumentError(
            "changes over HTTP need a password: give --password-file, or users with --users"
        )
    for text in [*options.bind, *([options.http] if options.http else [])]:
        check_reach(text, address(text)[0], options)


def check_reach(text: str, host: str, options: Options) -> None:
    """Raise if other machines can reach an address that lacks a password, or TLS."""
    if is_loopback(host):
        return
    if options.access.is_open:
        raise ArgumentError(
            f"{text} can be reached from other machines, and needs a password: give "
            "--password-file, or users with --users"
        )
    if options.tls is None and not options.plain:
        raise ArgumentError(
            f"{text} can be reached from other machines, and passwords would be sent in the "
            "clear: give --tls-cert and --tls-key, or say --no-tls"
        )


def address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise ArgumentError(f"an address is HOST:PORT, such as {DEFAULT_BIND}, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(store: Store[bytes], options: Options) -> None:
    """Serve an open store until it is asked to stop; raise as `run` does."""
    check(options)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    save = None if options.backup is None else partial(backup, store, options.backup)
    server = Server(store, access=options.access, stopped=stopped.set, backup=save)
    settings = server.settings
    if options.http:  # with few files, a quarter of them
        wanted = options.max_clients + OWN_FILES + _HTTP_FILES
        settings.other_files += min(_HTTP_FILES, limit_of_files(wanted) // 4)
    most = settings.clients_that_fit(options.max_clients)
    if most < options.max_clients:
        text = "%s clients at most: the process may have %s files (ulimit -n), and needs %s itself"
        log.warning(text, most, limit_of_files(0), settings.other_files)
    settings.max_clients = most
    settings.timeout_s = options.timeout_s
    settings.allow_flush = options.allow_flush
    server.primary.target = TARGETS[options.replica_format]
    context = None if options.tls is None else tls_context(*options.tls)
    source = options.replicaof
    if source is None and not options.readonly and (row := following(store)) is not None:
        source = row.replicaof or None
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.upstream.close)  # before the store, whatever fails
        if source is not None:
            await server.upstream.follow(source)
        sockets = list(_sockets(options, stack, settings))
        for one in sockets:
            _keep_alive(one)
        listening: list[asyncio.Server | SecureListener] = []
        made: asyncio.Server | SecureListener
        for one in sockets:
            if context is None or one.family == socket.AF_UNIX:
                made = await loop.create_server(
                    partial(Connection, server), sock=one, backlog=BACKLOG
                )
            else:
                made = SecureListener(one, context, partial(Connection, server), server.has_room)
            listening.append(made)
            stack.callback(made.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, stopped.set)
        http = None
        if options.http is not None:
            http, settings.shown["http"] = await start_http(store, options, context, server)
        _notify("READY=1")
        if options.ready is not None:
            options.ready(server)
        await stopped.wait()
        _notify("STOPPING=1")
        for open_socket in listening:
            open_socket.close()
        if http is not None:
            await http.stop()
        await server.close()


async def start_http(
    store: Store[bytes], options: Options, tls: ssl.SSLContext | None, server: Server | None = None
) -> tuple[HttpServer, str]:
    """Serve HTTP and the page at `options.http`; return the server, and where it is."""
    assert options.http is not None
    try:
        from streamkeep.server.http.app import create_app
        from streamkeep.server.http.serving import HttpServer, bind
    except ImportError as error:
        raise StoreError(
            f"HTTP needs packages that are not installed ({error.name}); next: "
            f"{install_hint('server')}"
        ) from error
    try:
        sockets = bind(*address(options.http))
    except OSError as error:
        raise StoreError(
            f"cannot listen on {options.http}: {error.strerror or error}; next: name another port, "
            "or 0 for any that is free"
        ) from error
    app = create_app(store, options.access, write=options.write, hosts=options.hosts)
    if server is not None:
        app.state.more_metrics = lambda: server_metrics(server)
        app.state.is_replica = lambda: server.settings.refuses_writes  # before the first request
        app.state.is_over, app.state.end = server.expiry.is_over, server.expiry.end
        server.upstream.end_waits = app.state.end_deliveries
    taken = OWN_FILES + (0 if server is None else server.settings.max_clients)
    files = min(_HTTP_FILES, limit_of_files(taken + _HTTP_FILES) - taken)
    if server is not None:
        server.settings.other_files = OWN_FILES + files
    http = HttpServer(app, sockets, files, tls=tls)
    await http.start()
    return http, f"{options.http.rpartition(':')[0]}:{sockets[0].getsockname()[1]}"


def tls_context(certificate: Path, key: Path, authority: Path | None = None) -> ssl.SSLContext:
    """Return the TLS of a server; its clients' certificates must be of the authority, if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        if authority is not None:
            context.load_verify_locations(authority)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        raise StoreError(f"the certificate {certificate} cannot be used: {error}") from error
    return context


# --- sockets ------------------------------------------------------------------------------------


def _sockets(
    options: Options, stack: contextlib.AsyncExitStack, settings: Settings
) -> Iterator[socket.socket]:
    handed = list(_handed_over())
    for one in handed:
        if one.family != socket.AF_UNIX:
            host = one.getsockname()[0]
            settings.note_address(host, one)
            check_reach(f"the socket {settings.addresses[-1]} of systemd", host, options)
        else:
            settings.shown["unixsocket"] = str(one.getsockname())
        yield one
    bind = options.bind
    if not bind and options.unix is None and not handed:
        bind = [DEFAULT_BIND]
    for text in bind:
        host, port = address(text)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            one = socket.socket(found[0], socket.SOCK_STREAM)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(found[4])
        except OSError as error:
            problem = f"cannot listen on {text}: {error.strerror or error}"
            raise StoreError(f"{problem}; next: name another address with --bind") from error
        settings.note_address(host, one)
        yield one
    if options.unix is not None:
        settings.shown["unixsocket"] = str(options.unix)
        yield stack.enter_context(unix_socket(options.unix, options.unix_mode))


def _keep_alive(listener: socket.socket) -> None:
    """Have the kernel end connections, which inherit this, whose peers have gone without a word."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 300), ("TCP_KEEPINTVL", 100), ("TCP_KEEPCNT", 3)):
        if listener.family != socket.AF_UNIX and hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@contextlib.contextmanager
def unix_socket(path: Path, mode: int = 0o600) -> Iterator[socket.socket]:
    """Return a Unix socket with this mode; remove its file at the end.

    A socket that a server left at its end is replaced; one that is served, or any other file, is
    not.
    """
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not path.is_symlink():  # `bind` refuses any other file
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
        before = os.umask(0o777 & ~mode)  # no moment in which others could connect
        try:
            one.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        one.close()
        problem = f"cannot listen on {path}: {error.strerror or error}"
        raise StoreError(f"{problem}; next: name another file with --socket") from error
    made = path.stat()
    try:
        yield one
    finally:
        with contextlib.suppress(OSError):
            now = path.stat()
            if (now.st_dev, now.st_ino) == (made.st_dev, made.st_ino):
                path.unlink()


def _handed_over() -> Iterator[socket.socket]:
    """Yield the sockets that systemd has opened for this process."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return
    count = int(os.environ.get("LISTEN_FDS", "0"))
    for descriptor in range(_FIRST_HANDED, _FIRST_HANDED + count):
        os.set_inheritable(descriptor, False)
        yield socket.socket(fileno=descriptor)


def _notify(state: str) -> None:
    """Report the state of the process to systemd, if it asks for that."""
    target = os.environ.get("NOTIFY_SOCKET")
    if not target:
        return
    name = "\0" + target[1:] if target[:1] == "@" else target
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.sendto(state.encode(), name)
