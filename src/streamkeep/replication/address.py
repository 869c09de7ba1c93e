"""The address of a Redis server, as its clients write it."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from streamkeep.format.core.errors import ArgumentError

_PORT: Final = 6379
_FILES: Final = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")  # as redis-py calls them
_FORMS: Final = "redis://[user:password@]host[:port][/db], rediss://..., or unix:///socket[?db=0]"


class Address(NamedTuple):
    """Where a server listens, and who asks.

    Attributes:
        path: of a Unix socket; empty for a host.
        tls: whether the connection is encrypted, and the name of the host is checked.
        database: the number of the database.
        files: for TLS: the certificate of this client, its key, and the authorities that are
            trusted in place of those of the system; each may be empty.
    """

    host: str
    port: int
    path: str
    tls: bool
    user: str
    password: str
    database: int
    files: tuple[str, ...]

    def shown(self) -> str:
        """Return the address without user and password."""
        if self.path:
            return f"unix://{self.path}?db={self.database}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' * self.tls}://{host}:{self.port}/{self.database}"


def parse_address(text: str) -> Address:
    """Return what an address says; raise ArgumentError for one that cannot be used."""
    if not isinstance(text, str):  # without it, since it has the password
        raise ArgumentError(f"the address must be text, not {type(text).__name__}")
    try:
        parts = urlsplit(text)
    except ValueError:  # whose text has the password
        raise _refused(text, f"expected {_FORMS}") from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise _refused(text, "write %2F, %3F, %23 and %40 for / ? # and @ in names and passwords")
    try:
        port = parts.port
        query = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise _refused(text, str(error)) from None
    host = parts.hostname or "localhost"
    try:
        host.encode("idna")  # as the resolver does; what has no UTF-8 could not be shown
    except UnicodeError as error:
        raise _refused(text, f"no host has the name {host!r}") from error
    unix = parts.scheme == "unix"
    if parts.scheme not in ("redis", "rediss", "unix") or not (
        parts.path if unix else parts.netloc
    ):
        raise _refused(text, f"expected {_FORMS}")
    known = ("db", *_FILES) if parts.scheme == "rediss" else ("db",)
    if unknown := sorted(query.keys() - {*known}):
        raise _refused(text, f"unknown option {unknown[0]!r}; expected {_FORMS}")
    database = query["db"][0] if "db" in query else ("" if unix else parts.path.strip("/"))
    if database and not (database.isascii() and database.isdigit() and len(database) < 6):
        raise _refused(text, f"{database!r} is not the number of a database")
    return Address(
        host,
        _PORT if port is None else port,
        unquote(parts.path) if unix else "",
        parts.scheme == "rediss",
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        int(database or 0),
        tuple(query.get(name, [""])[0] for name in _FILES),
    )


def _refused(text: str, problem: str) -> ArgumentError:
    shown = text.rpartition("@")[2]  # without a password
    return ArgumentError(f"{shown!r} is not the address of a Redis server: {problem}")
