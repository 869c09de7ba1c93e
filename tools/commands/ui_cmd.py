"""ui: the page for people, and the routes of HTTP that it uses."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from streamkeep.supported import install_hint
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Failure
from streamkeep.tools.base.opening import open_store

if TYPE_CHECKING:
    from streamkeep.server.http.serving import HttpServer

BIND: Final = "127.0.0.1:8080"
MIN_SECRET: Final = 16  # characters of a token that a user chooses


@command()
def ui(
    store_path: StorePath,
    bind: str = BIND,
    write: bool = False,
    token_file: Path | None = None,
    host_names: tuple[str, ...] = (),
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    plain: bool = False,
) -> None:
    """Show STORE in a browser, until Ctrl-C.

    The page shows streams, entries, groups, pending entries, the archive, and what is stuck. It
    needs the token in the printed address. So do the routes of HTTP below it, which
    `/openapi.json` describes. Nothing can be changed without --write.

    \b
    Exit status: 0  stopped by Ctrl-C or SIGTERM
                 1  the address is in use
                 3  not a store, of a newer version, or in need of recovery
                 6  there is no such store

    \b
    Examples:
      streamkeep ui orders.store
      streamkeep ui orders.store --bind 127.0.0.1:0 --write

    Args:
        bind (ADDRESS:PORT): Port 0: any.
        write: Let callers change the store; else it is read-only.
        token_file (FILE): Read the token, of 16 characters or more, from FILE, which has the
            mode 600; by default it is new at each start.
        host_names (--host-name NAME): Also answer to this name; may be repeated.
        tls_cert (FILE): Serve HTTPS: certificates.
        tls_key (FILE): Serve HTTPS: the private key.
        plain: Serve other machines without TLS.
    """
    address, port = _place(bind)
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key must be used together")
    try:
        from streamkeep.server.access import Access
        from streamkeep.server.http.app import create_app
        from streamkeep.server.http.serving import HttpServer
        from streamkeep.server.http.serving import bind as bind_sockets
        from streamkeep.server.serve import is_loopback, tls_context
    except ImportError as error:
        text = f"the page needs packages that are not installed ({error.name})"
        raise Failure(text, hint=install_hint("server")) from None
    tls = None if tls_cert is None or tls_key is None else tls_context(tls_cert, tls_key)
    if tls is None and not plain and not is_loopback(address):
        hint = "--tls-cert and --tls-key, or --plain where the network is trusted"
        raise Failure(f"{address} is reachable from other machines, without TLS", hint=hint)
    token = secrets.token_urlsafe(24) if token_file is None else _token(token_file)
    with open_store(store_path, readonly=not write) as store:
        app = create_app(store, Access(token), write=write, hosts=host_names)
        try:
            sockets = bind_sockets(address, port)
        except OSError as error:
            hint = "--bind 127.0.0.1:0 takes a free port"
            raise Failure(f"{bind}: {error.strerror or error}", hint=hint) from None
        server = HttpServer(app, sockets, tls=tls)
        taken = sockets[0].getsockname()[1]
        shown = f"[{address}]" if ":" in address else address or "localhost"
        url = f"{'http' if tls is None else 'https'}://{shown}:{taken}/page/#token={token}"
        asyncio.run(_serve(server, url, taken))
    output.done(stopped=True)


async def _serve(server: HttpServer, url: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await server.start()
    if common.as_json():
        output.json_line("listening", url=url, port=port)
    else:
        output.line(url)
        output.note("press Ctrl-C to stop")
    output.flush()
    await stopped.wait()
    await server.stop()


def _place(bind: str) -> tuple[str, int]:
    """Return address and port of `ADDRESS:PORT`, `[ADDRESS]:PORT` or `PORT`."""
    address, colon, port = bind.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{bind!r} is not ADDRESS:PORT", param_hint="--bind")
    return (address.strip("[]") if colon else "127.0.0.1"), int(port)


def _token(path: Path) -> str:
    """Return the token in a file that only this user can read."""
    text = path.read_text("utf-8").strip()
    if path.stat().st_mode & 0o077:
        hint = f"chmod 600 {shlex.quote(str(path))}"
        raise Failure(f"{path}: other users can read or change the token", hint=hint)
    if len(text) < MIN_SECRET or not text.isascii() or not text.isprintable() or " " in text:
        raise Failure(f"{path}: a token has at least {MIN_SECRET} printable characters, no spaces")
    return text
