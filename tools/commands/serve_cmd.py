"""serve: a store for Redis clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Duration, Number, path_option, store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import given
from streamkeep.tools.base.opening import note_opened
from streamkeep.tools.base.statuses import Failure

if TYPE_CHECKING:
    from streamkeep.server.access import Access
    from streamkeep.server.resp.server import Server


@command(finishes=True)
@store_argument
@path_option(
    "--socket",
    "unix",
    metavar="PATH",
    help="Listen on a Unix socket, which only this user may connect to.",
)
@click.option(
    "--bind",
    multiple=True,
    metavar="HOST:PORT",
    help="Listen on an address; may be repeated. Without it and --socket, on 127.0.0.1:6379, which "
    "every user of this machine can reach.",
)
@click.option("--http", metavar="HOST:PORT", help="Also serve HTTP and a page to look at.")
@click.option("--write", is_flag=True, help="Callers of --http may change the store.")
@click.option(
    "--http-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further name by which --http may be called; may be repeated.",
)
@path_option(
    "--password-file",
    metavar="FILE",
    help="The first line of FILE is the password of the default user.",
)
@path_option(
    "--users", metavar="FILE", help="Users and their rights, in the format of Redis's aclfile."
)
@path_option("--tls-cert", metavar="FILE", help="Certificate for TLS.")
@path_option("--tls-key", metavar="FILE", help="Its key.")
@path_option(
    "--tls-ca", metavar="FILE", help="Only accept clients with a certificate of this authority."
)
@click.option(
    "--no-tls",
    is_flag=True,
    help="Allow an address that other machines reach without TLS: the network encrypts.",
)
@path_option("--backup", metavar="TARGET", help="BGSAVE makes a backup there.")
@click.option(
    "--ship",
    metavar="TARGET",
    help="Keep a copy of the store in a folder or a bucket, as `streamkeep ship` does.",
)
@click.option(
    "--socket-mode",
    default="600",
    show_default=True,
    metavar="MODE",
    help="Who may connect to --socket: 660 for the users of its group.",
)
@click.option(
    "--archive-every",
    type=Duration(),
    help="Maintain and archive the store so often: retention, and segments of what was trimmed.",
)
@click.option(
    "--replica-format",
    type=click.Choice(["7.0", "7.2", "8.6", "8.8", "8.10"]),
    default="7.0",
    show_default=True,
    help="The oldest Redis among the replicas of this server; Valkey reads 7.2.",
)
@click.option("--allow-flush", is_flag=True, help="Allow FLUSHDB and FLUSHALL.")
@click.option(
    "--max-clients",
    type=Number(min=1),
    default=10_000,
    show_default=True,
    help="Refuse further clients.",
)
@click.option(
    "--timeout", type=Duration(), help="Close connections that are idle so long; by default none."
)
def serve(
    store_path: Path,
    bind: tuple[str, ...],
    http: str | None,
    write: bool,
    hosts: tuple[str, ...],
    password_file: Path | None,
    users: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    no_tls: bool,
    socket_mode: str,
    archive_every: int | None,
    timeout: int | None,
    **more: Any,
) -> None:
    """Serve a store to Redis clients, in any language.

    Speaks RESP2 and RESP3 with every command of streams, transactions, blocking reads, and what
    clients send when they connect. The store is created if it is missing. Other processes may have
    it open at the same time, and other servers too.

    Runs until SIGTERM, SIGINT, or SHUTDOWN of a client. Then it sends the replies that wait for the
    disk, and closes the store. An address that other machines can reach needs a password, and TLS
    unless --no-tls is given. On 127.0.0.1, without a password, every user of this machine can read
    and change the store, whatever the mode of its files is; a Unix socket is for this user only.

    \b
    Examples:
      streamkeep serve orders.store --socket orders.sock
      streamkeep serve orders.store --socket /run/orders.sock --sync none
      streamkeep serve orders.store
      streamkeep serve orders.store --bind 10.0.0.5:6380 --password-file pw --tls-cert c --tls-key k
    """
    from streamkeep.server import serve as serving  # here, since it loads asyncio and the engine

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key need each other")
    if socket_mode not in ("600", "660", "666"):
        raise click.UsageError("--socket-mode is 600, 660 or 666")
    if http is None and (write or hosts):
        raise click.UsageError("--write and --http-host need --http")
    options = serving.Options(
        bind=list(bind),
        http=http,
        write=write,
        hosts=hosts,
        access=_access(password_file, users),
        tls=None if tls_cert is None or tls_key is None else (tls_cert, tls_key, tls_ca),
        plain=no_tls,
        unix_mode=int(socket_mode, 8),
        archive_every=archive_every / 1000 if archive_every else None,
        timeout_s=0 if timeout is None else max(1, timeout // 1000),
        ready=_tell,
        **more,
    )
    note_opened(store_path)
    serving.run(store_path, options, sync=given().sync)


def _access(password_file: Path | None, users: Path | None) -> Access:
    from streamkeep.server.access import Access

    try:
        password = None
        if password_file is not None:
            password = password_file.read_text(encoding="utf-8").partition("\n")[0]
            if not password:
                raise Failure(f"{password_file} begins with an empty line, not with a password")
        return Access(password) if users is None else Access.from_file(users, password)
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"passwords and users cannot be read: {error}") from error


def _tell(server: Server) -> None:
    shown = server.settings.shown
    open_to_all = [f"{shown['bind']}:{shown['port']}"] if "port" in shown else []
    places = [*open_to_all, shown["unixsocket"]] if "unixsocket" in shown else [*open_to_all]
    open_to_all += [shown["http"]] if "http" in shown else []
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
