"""Waiting without holding a snapshot, for `tail --follow` and `read --block`.

Entries are printed from snapshots, with all their pairs. A snapshot pins the store's pages, so
none is held while waiting, or while a slow terminal takes what was read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from streamkeep.format.core.errors import NoSuchKeyError
from streamkeep.tools.base.arguments import Duration

if TYPE_CHECKING:
    from streamkeep.engine.api.read_commands import ScanEntry
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.api.views import Snapshot

_AT_ONCE: Final = 1000

block_option = click.option(
    "--block",
    "block_ms",
    type=Duration(),
    help="Wait for entries, at most so long: 500ms, 30s, 10m; 0 without limit.",
)


def last_id(snapshot: Snapshot, key: bytes) -> bytes:
    """Return what `$` means: the last ID that the stream generated; 0-0 if it is missing."""
    try:
        found: bytes = snapshot.xinfo_stream(key)["last-generated-id"]
    except NoSuchKeyError:
        return b"0-0"
    return found


def entries_from_now(store: Store, key: bytes, after: bytes) -> Iterator[ScanEntry]:
    """Yield entries above an ID as they come, without end; flush the output before each wait."""
    while True:
        sys.stdout.flush()
        store.xread({key: after}, count=1, block=0)
        with store.snapshot() as snapshot:
            entries = list(islice(snapshot.scan(key, b"(" + after), _AT_ONCE))
        yield from entries
        if entries:
            after = entries[-1].id
