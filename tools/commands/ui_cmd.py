"""ui: the page for people, and the routes of HTTP that it uses."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import signal
from pathlib import Path
from typing import Final

import click

from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Failure
from streamkeep.tools.base.opening import open_store

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
    token = secrets.token_urlsafe(24) if token_file is None else _token(token_file)
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


def _token(path: Path) -> str:
    """Return the token in a file that only this user can read."""
    text = path.read_text("utf-8").strip()
    if path.stat().st_mode & 0o077:
        hint = f"chmod 600 {shlex.quote(str(path))}"
        raise Failure(f"{path}: other users can read or change the token", hint=hint)
    if len(text) < MIN_SECRET or not text.isascii() or not text.isprintable() or " " in text:
        raise Failure(f"{path}: a token has at least {MIN_SECRET} printable characters, no spaces")
    return text
