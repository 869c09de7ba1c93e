"""serve, ui: a store for Redis clients, and a page for people."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from streamkeep.format.core.errors import CommandError
from streamkeep.tools.base import arguments, common, output
from streamkeep.tools.base.arguments import Ms, Positive, StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Failure, given
from streamkeep.tools.base.opening import check_secret, note_opened, open_store

if TYPE_CHECKING:
    from streamkeep.server.access import Access
    from streamkeep.server.resp.server import Server


@command()
def serve(
    store_path: StorePath,
    unix: Path | None = None,
    bind: tuple[str, ...] = (),
    http: str | None = None,
    write: bool = False,
    hosts: tuple[str, ...] = (),
    password_file: Path | None = None,
    users: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_ca: Path | None = None,
    no_tls: bool = False,
    backup: Path | None = None,
    ship: str | None = None,
    socket_mode: str = "600",
    archive_every: Ms | None = None,
    replica_format: Literal["7.0", "7.2", "8.6", "8.8", "8.10"] = "7.0",
    replicaof: str | None = None,
    allow_flush: bool = False,
    readonly: bool = False,
    max_clients: Positive = 10_000,
    timeout: Ms | None = None,
) -> None:
    """Serve a store to Redis clients, in any language.

    Speaks RESP2 and RESP3 with every command of streams, transactions, blocking reads, and what
    clients send when they connect. The store is created if it is missing. Other processes may have
    it open at the same time, and other servers too.

    Runs until SIGTERM, SIGINT, or SHUTDOWN of a client. Then it sends the replies that wait for the
    disk, and closes the store. An address that other machines can reach needs a password, and TLS
    unless --no-tls is given. On 127.0.0.1, without a password, every user of this machine can read
    and change the store, whatever the mode of its files is; a Unix socket is for this user only.

    Examples:
      streamkeep serve orders.store --socket orders.sock
      streamkeep serve orders.store --socket /run/orders.sock --sync none
      streamkeep serve orders.store
      streamkeep serve standby.store --readonly
      streamkeep serve copy.store --bind 127.0.0.1:6380 --replicaof '127.0.0.1 6379'
      streamkeep serve orders.store --bind 10.0.0.5:6380 --password-file pw --tls-cert c --tls-key k

    Args:
        unix (--socket PATH): Listen on a Unix socket, which only this user may connect to.
        bind (HOST:PORT): Listen on an address; may be repeated. Without it and --socket, on
            127.0.0.1:6379, which every user of this machine can reach.
        http (HOST:PORT): Also serve HTTP and a page to look at.
        write: Callers of --http may change the store.
        hosts (--http-host NAME): A further name by which --http may be called; may be repeated.
        password_file (FILE): The first line of FILE is the password of the default user. Only its
            owner may change FILE, as that of --users.
        users (FILE): Users and their rights, in the format of Redis's aclfile.
        tls_cert (FILE): Certificate for TLS.
        tls_key (FILE): Its key.
        tls_ca (FILE): Only accept clients with a certificate of this authority.
        no_tls: Allow an address that other machines reach without TLS: the network encrypts.
        backup (TARGET): BGSAVE makes a backup there.
        ship (TARGET): Keep a copy of the store in a folder or a bucket, as `streamkeep ship` does.
        socket_mode (MODE): Who may connect to --socket: 660 for the users of its group.
        archive_every: Maintain and archive the store so often: retention, and segments of what was
            trimmed.
        replica_format: The oldest Redis among the replicas of this server; Valkey reads 7.2.
        replicaof ("HOST PORT"): Be a replica of a Redis server: follow it, and let no client write.
            Also redis://[user@]host[:port], rediss:// with TLS, or unix:///socket. A password is
            taken from REDISCLI_AUTH. "NO ONE" ends that.
        allow_flush: Allow FLUSHDB and FLUSHALL.
        readonly: Clients may only read, as of a replica; for a standby, and what `follow` writes.
        max_clients: Refuse further clients.
        timeout: Close connections that are idle so long; by default none.
    """
    from streamkeep.server import serve as serving  # here, since it loads asyncio and the engine

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key need each other")
    if tls_cert is None:  # clients would be accepted without a certificate
        arguments.refuse_options("needs --tls-cert and --tls-key", "tls_ca")
    if unix is None:
        arguments.refuse_options("needs --socket", "socket_mode")
    if socket_mode not in ("600", "660", "666"):
        raise click.UsageError("--socket-mode is 600, 660 or 666")
    if http is None and (write or hosts):
        raise click.UsageError("--write and --http-host need --http")
    ctx = click.get_current_context()
    changes = ("write", "backup", "ship", "archive-every", "allow-flush", "replicaof")
    for name in changes if readonly else ():
        if arguments.was_given(ctx, name.replace("-", "_")):
            raise click.UsageError(f"--readonly allows no changes, and so no --{name}")
    options = serving.Options(
        bind=list(bind),
        unix=unix,
        http=http,
        write=write,
        readonly=readonly,
        hosts=hosts,
        access=_access(password_file, users),
        tls=None if tls_cert is None or tls_key is None else (tls_cert, tls_key, tls_ca),
        plain=no_tls,
        unix_mode=int(socket_mode, 8),
        archive_every=archive_every / 1000 if archive_every else None,
        timeout_s=0 if timeout is None else max(1, timeout // 1000),
        backup=backup,
        ship=ship,
        replica_format=replica_format,
        replicaof=None if replicaof is None else _source(replicaof),
        max_clients=max_clients,
        allow_flush=allow_flush,
        ready=_tell,
    )
    note_opened(store_path)
    serving.run(store_path, options, sync=given().sync)


def _source(text: str) -> str:
    from streamkeep.server.resp.upstream import source_of

    words = text.split()
    if "://" in text:
        return text
    with contextlib.suppress(CommandError):
        if len(words) == 2:
            return source_of(*words)
    raise click.UsageError(f"--replicaof is 'HOST PORT', an address or 'NO ONE', not {text!r}")


def _access(password_file: Path | None, users: Path | None) -> Access:
    from streamkeep.server.access import Access

    try:
        password = None
        for path in filter(None, (password_file, users)):
            check_secret(path)
        if password_file is not None:
            password = password_file.read_text(encoding="utf-8").partition("\n")[0]
            if not password:
                raise Failure(f"{password_file} begins with an empty line, not with a password")
        return Access(password) if users is None else Access.from_file(users, password)
    except UnicodeDecodeError as error:
        raise Failure(f"passwords and users cannot be read: {error}") from error


def _tell(server: Server) -> None:
    shown = server.settings.shown
    open_to_all = server.settings.addresses + ([shown["http"]] if "http" in shown else [])
    places = server.settings.addresses + ([shown["unixsocket"]] if "unixsocket" in shown else [])
    if common.as_json():
        output.json_line(
            "serving", store=str(server.store.path), addresses=places, http=shown.get("http")
        )
    else:
        if "http" in shown:
            output.note(f"{server.store.path}: serving HTTP, and a page, on {shown['http']}")
        output.note(f"{server.store.path}: serving Redis clients on {' and '.join(places)}")
    if open_to_all and server.access.is_open:
        output.note(
            f"every user of this machine can use {' and '.join(open_to_all)} without a password; "
            "next: --socket PATH is for this user only, --password-file asks for a password"
        )
    output.flush()


# --- ui -------------------------------------------------------------------------------------------


BIND: Final = "127.0.0.1:8080"
MIN_SECRET: Final = 16  # characters of a token that a user chooses


@command()
def ui(
    store_path: StorePath,
    bind: str = BIND,
    write: bool = False,
    token_file: Path | None = None,
    hosts: tuple[str, ...] = (),
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    no_tls: bool = False,
) -> None:
    """Show STORE in a browser, until Ctrl-C.

    The page shows streams, entries, groups, pending entries, the archive, and what is stuck. It
    needs the token in the printed address. So do the routes of HTTP below it, which
    `/openapi.json` describes. Nothing can be changed without --write.

    Exit status: 0  stopped by Ctrl-C or SIGTERM
                 3  not a store, of a newer version, or in need of recovery; or the address is
                    in use
                 6  there is no such store

    Examples:
      streamkeep ui orders.store
      streamkeep ui orders.store --bind 127.0.0.1:0 --write

    Args:
        bind (ADDRESS:PORT): Port 0: any.
        write: Let callers change the store; else it is read-only.
        token_file (FILE): Read the token, of 16 characters or more, from FILE, which has the
            mode 600; by default it is new at each start.
        hosts (--host-name NAME): Also answer to this name; may be repeated.
        tls_cert (FILE): Serve HTTPS: certificates.
        tls_key (FILE): Serve HTTPS: the private key.
        no_tls: Serve other machines without TLS: the network encrypts.
    """
    from streamkeep.server import serve as serving  # here, since it loads asyncio and the engine
    from streamkeep.server.access import Access

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key must be used together")
    token = secrets.token_urlsafe(24)
    if token_file is not None:  # which only this user can read
        token = token_file.read_text("ascii", errors="replace").strip()
        if token_file.stat().st_mode & 0o077:
            hint = f"chmod 600 {shlex.quote(str(token_file))}"
            raise Failure(f"{token_file}: other users can read or change the token", hint=hint)
        if len(token) < MIN_SECRET or not re.fullmatch("[!-~]+", token):
            least = f"at least {MIN_SECRET} printable characters, no spaces"
            raise Failure(f"{token_file}: a token has {least}")
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key, None)
    options = serving.Options(
        http=bind, access=Access(token), write=write, hosts=hosts, tls=tls, plain=no_tls
    )
    serving.check(options)

    async def serve() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        context = None if tls is None else serving.tls_context(*tls)
        server, place = await serving.start_http(store, options, context)
        url = f"{'http' if tls is None else 'https'}://{place}/page/#token={token}"
        if common.as_json():
            output.json_line("listening", url=url, port=int(place.rpartition(":")[2]))
        else:
            output.line(url)
            output.note("press Ctrl-C to stop")
        output.flush()
        await stopped.wait()
        await server.stop()

    with open_store(store_path, readonly=not write) as store:
        asyncio.run(serve())
    output.done(stopped=True)
