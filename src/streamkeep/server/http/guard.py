"""What every request passes before its route: path, Host, Origin, secret, and bounds for bodies.

    Host           A page of another site may have its own name resolve to this machine (DNS
                   rebinding); the browser then sends that name. Numeric addresses, `localhost` and
                   the given names are accepted.
    Origin         A request that can change something, and comes from a page of another site, is
                   refused, with or without a secret (CSRF).
    Authorization  `Bearer PASSWORD` for the default user, or `Basic USER:PASSWORD`. There are no
                   cookies: a browser never sends the password by itself. A wrong one is answered
                   after a pause.
    head           At most `MAX_HEAD` bytes. It says in one way only where the body ends: a server
                   in front may believe the other, and take a part of the body for a request.
    body           At most `max_body` bytes; each part of it must come within `BODY_S`.
    path           Routes see the percent-encoded path, so that `%2F` in a name is not a `/`.

Every reply has headers that keep browsers from guessing types, framing and leaking it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamkeep.format.core.errors import StreamkeepError
from streamkeep.server.access import REFUSED_S, Access, User
from streamkeep.server.http.routes import USER_AT
from streamkeep.server.http.wire import Problem, problem_of, problem_reply

_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_OPEN_PATHS: Final = ("/health", "/openapi.json")  # and the page itself, which holds no data
_NOBODY: Final = User(b"", [])
MAX_HEAD: Final = 64 << 10
BODY_S: Final = 30.0
_HOST: Final = re.compile(r"\[([^][]*)\](?::\d*)?|([^][:]*)(?::\d*)?")

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "content-security-policy": POLICY,
}


class Guard:
    """Lets a request pass, or answers it; the arguments are those of `app.create_app`.

    Args:
        open_below: paths below this one hold no data, and need no secret.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        *,
        hosts: Collection[str] | None,
        origins: Collection[str],
        open_below: str,
        max_body: int,
    ) -> None:
        self._app = app
        self._access = access
        self._hosts = None if hosts is None else {"localhost", *map(str.lower, hosts)}
        self._origins = origins
        self._open_below = open_below
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        began = False

        async def sender(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            inner = await self._checked(scope)
            length = Headers(scope=scope).get("content-length", "0")
            if length.isascii() and length.isdigit() and int(length[:20]) > self._max_body:
                raise too_large(self._max_body)
            await self._app(inner, bounded(receive, self._max_body, BODY_S), sender)
        except ClientDisconnect:
            return  # before the body was there: nothing has run, and nobody waits
        except (Problem, StreamkeepError) as error:
            if began:
                raise
            # No local name keeps it: with its traceback, it would be left to the garbage collector.
            reply = problem_reply(error if isinstance(error, Problem) else problem_of(error))
            await reply(scope, receive, sender)

    # --- checks ---------------------------------------------------------------------------------

    async def _checked(self, scope: Scope) -> Scope:
        """Return the scope for the routes; raise Problem."""
        headers = Headers(scope=scope)
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_HEAD:
            text = f"the head has more than {MAX_HEAD} bytes"
            raise Problem(431, text, headers={"connection": "close"})
        if "content-length" in headers and "transfer-encoding" in headers:
            text = "Content-Length and Transfer-Encoding exclude each other"
            raise Problem(400, text, headers={"connection": "close"})
        host = headers.get("host", "")
        name = host_name(host)
        if self._hosts is not None and name not in self._hosts and not _is_address(name):
            raise Problem(
                421,
                f"this server does not answer to the host {host!r}",
                hint="add the name, if it is yours: serve --http-host, ui --host-name",
            )
        if scope["method"] not in _SAFE:
            check_origin(headers, self._origins)
        path = raw_path(scope)
        if "\x00" in path:
            raise Problem(400, "the path has a NUL")
        below = path[len(scope.get("root_path", "")) :]
        is_open = below in ("", "/", *_OPEN_PATHS) or below.startswith(self._open_below)
        header = headers.get("authorization")
        user = self._access.anonymous
        if header is not None and (user is None or len(self._access.users) > 1):
            given = _given(header)
            user = None if given is None else self._access.log_in(*given)
        if user is None and not is_open:
            if header is not None:
                await asyncio.sleep(REFUSED_S)
            raise Problem(
                401,
                "a password is needed, or the given one is wrong",
                hint="send Authorization: Bearer PASSWORD, or Basic USER:PASSWORD",
                headers={"www-authenticate": 'Bearer realm="streamkeep"'},
            )
        return {**scope, "path": path, USER_AT: user or _NOBODY}


def _given(header: str) -> tuple[bytes, bytes] | None:
    """Return the user and the password in an `Authorization` header."""
    scheme, _, rest = header.strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return b"default", rest.encode("latin-1")
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            name, colon, password = base64.b64decode(rest, validate=True).partition(b":")
            return (name or b"default", password) if colon else None
    return None


def check_origin(headers: Mapping[str, str], origins: Collection[str]) -> None:
    """Refuse what a page of another site sends with the cookies or the place of a user (CSRF)."""
    origin = headers.get("origin")
    if origin is not None and origin in origins:
        return
    host = headers.get("host", "").lower()
    same = origin is None or origin.partition("://")[2].lower() == host
    if not same or headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Problem(403, f"a cross-origin request from {origin or 'another site'} is refused")


def bounded(receive: Receive, most: int, patience_s: float) -> Receive:
    """Return what reads a body, and raises when it is too large, or when no part comes in time."""
    size = 0
    more = True

    async def receiver() -> Message:
        nonlocal size, more
        if not more:  # the end of the connection may be awaited without limit
            return await receive()
        try:
            # Not `wait_for`, which loses a cancellation that comes with the message (Python 3.11).
            async with asyncio.timeout(patience_s):
                message = await receive()
        except TimeoutError:
            text = f"no part of the body came for {patience_s:g} s"
            raise Problem(408, text, headers={"connection": "close"}) from None
        if message["type"] == "http.request":
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
            if size > most:
                raise too_large(most)
        return message

    return receiver


def too_large(most: int) -> Problem:
    """Return the problem with a body that has more bytes than this."""
    text = f"the body has more than {most} bytes"
    return Problem(413, text, headers={"connection": "close"})


def raw_path(scope: Scope) -> str:
    """Return the percent-encoded path after `root_path`, which stays as it is.

    An application that mounts this one has decoded `root_path`, and counted its `/`.
    """
    root: str = scope.get("root_path", "")
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return str(scope["path"])
    text = raw.partition(b"?")[0].decode("latin-1")
    at = 0
    for _ in range(root.count("/") + 1):
        at = text.find("/", at) + 1
    return root + text[at - 1 :] if at else root


def host_name(host: str) -> str:
    """Return the name in a `Host` header, in lower case and without the port; "" if it is wrong."""
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found[1] or found[2] or ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
