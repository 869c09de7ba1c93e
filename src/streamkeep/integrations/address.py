"""Where a store is: a path, or a URL such as `streamkeep:////var/lib/jobs.store?sync=interval`.

The form of the URL is that of SQLite's and of Kombu's file transports: three slashes before a path
that is relative to the working directory, four before an absolute one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qsl, unquote

from streamkeep.engine.api.views import Sync
from streamkeep.format.core.errors import ArgumentError

SCHEME: Final = "streamkeep"
_PREFIX: Final = f"{SCHEME}://"
_SYNC_MODES: Final = ("commit", "interval", "none")


class Address(NamedTuple):
    """The directory of a store, absolute, and the sync mode of its changes."""

    path: Path
    sync: Sync = "commit"


def parse_address(given: str | os.PathLike[str], sync: Sync | None = None) -> Address:
    """Return where a store is.

    Args:
        given: a path, or a URL; its query may have `sync`.
        sync: the sync mode, unless the URL has one; by default "commit".

    Raises:
        ArgumentError: it is not a path or such a URL; the message shows one.
    """
    text = os.fspath(given)
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"the path of a store must be a text, not {given!r}")
    chosen: str = sync or "commit"
    if "://" in text:
        text, chosen = _of_url(text, chosen)
    if "\0" in text:
        raise ArgumentError(f"a path cannot have a null character: {text!r}")
    if chosen not in _SYNC_MODES:
        raise ArgumentError(f"sync must be one of {', '.join(_SYNC_MODES)}, not {chosen!r}")
    return Address(Path(text).absolute(), cast(Sync, chosen))


def _of_url(url: str, sync: str) -> tuple[str, str]:
    form = f"{_PREFIX}//path/of/store or {_PREFIX}/path/from/here"
    if not url.startswith(_PREFIX):
        raise ArgumentError(f"{url!r} is not a URL of a store; next: write {form}")
    rest, _, query = url[len(_PREFIX) :].partition("?")
    if not rest.startswith("/"):
        raise ArgumentError(
            f"{url!r} names a host, and a store is a directory of this machine; next: write {form}"
        )
    path = unquote(rest[1:])
    if not path.strip("/"):
        raise ArgumentError(f"{url!r} has no path; next: write {form}")
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "sync":
            raise ArgumentError(f"{url!r} has an unknown option {name!r}; there is `sync` only")
        sync = value
    return path, sync
