"""What a caller may do, and the secrets that prove who calls.

A request proves itself with `Authorization: Bearer SECRET` or `Authorization: Basic USER:SECRET`.
There are no cookies: a browser never sends the secret by itself, so no other site can make it do
so.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple


class Rights(NamedTuple):
    """What a caller may do.

    Attributes:
        write: whether it may change the store.
        prefixes: it sees only keys that begin with one of these; None for all keys.
    """

    write: bool = False
    prefixes: tuple[bytes, ...] | None = None

    def sees(self, key: bytes) -> bool:
        """Say whether the caller may read the stream `key`."""
        return self.prefixes is None or key.startswith(self.prefixes)


# Returns the rights of a user (None: not named) with a secret; None where the secret is wrong.
Authenticate = Callable[[str | None, str], Rights | None]

NO_RIGHTS: Final = Rights(False, ())


class Access:
    """What each user may do, and which names the server answers to.

    Args:
        token: the secret that requests need; None to let every request in.
        write: whether requests may change the store.
        hosts: names that a request may have in `Host`, in addition to `localhost` and numeric
            addresses; None to accept any, where another server has checked it.
        origins: origins of other sites whose pages may call (CORS); none by default.
        authenticate: checks users and secrets in place of `token`.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        write: bool = False,
        hosts: Sequence[str] | None = (),
        origins: Sequence[str] = (),
        authenticate: Authenticate | None = None,
    ) -> None:
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.origins = tuple(origins)
        self.write = write
        self._token = None if token is None else token.encode()
        self._authenticate = authenticate

    @property
    def needs_secret(self) -> bool:
        """Whether a request without a secret is refused."""
        return self._token is not None or self._authenticate is not None

    def rights(self, header: str | None) -> Rights | None:
        """Return the rights of a request with this `Authorization` header; None to refuse it."""
        if not self.needs_secret:
            return Rights(self.write)
        given = _secret(header)
        if given is None:
            return None
        user, secret = given
        if self._authenticate is not None:
            found = self._authenticate(user, secret)
            return None if found is None else found._replace(write=found.write and self.write)
        assert self._token is not None
        same = hmac.compare_digest(self._token, secret.encode("utf-8", "surrogateescape"))
        return Rights(self.write) if same else None


def _secret(header: str | None) -> tuple[str | None, str] | None:
    """Return the user, if one is named, and the secret of an `Authorization` header."""
    if header is None:
        return None
    scheme, _, rest = header.strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return None, rest
    if scheme.lower() == "basic":
        try:
            user, colon, secret = base64.b64decode(rest, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return (user or None, secret) if colon else None
    return None
