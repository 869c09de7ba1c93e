"""Check a whole store: every check, on every stream, as of one commit.

Nothing is ever changed, and no bytes can end the process: LMDB's pages are read by `tree`, not by
LMDB. Damage ends one check, not the run. What is damaged is reported once, by the check that is
about it; other checks pass over it, and draw no conclusions from what they could not read.

The order of the findings is that of the store's own keys, so that two runs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from streamkeep.engine.api import Store
from streamkeep.format.errors import NoSuchKeyError
from streamkeep.format.keys import NODES
from streamkeep.recovery.catalogue import guarded
from streamkeep.recovery.check_files import check_files
from streamkeep.recovery.check_groups import check_group_numbers, check_groups
from streamkeep.recovery.check_messages import check_message_numbers, check_messages
from streamkeep.recovery.check_names import (
    check_names,
    check_numbers,
    check_orphans,
    named_streams,
    nameless_streams,
)
from streamkeep.recovery.check_pages import PageWalk
from streamkeep.recovery.check_rows import check_garbage, check_meta, check_rows, check_unused
from streamkeep.recovery.check_streams import check_stream, check_stream_keys
from streamkeep.recovery.findings import Finding
from streamkeep.recovery.source import Source, open_source, see_snapshot
from streamkeep.recovery.tree import Tables

STORE_CHECKS: tuple[Callable[[Tables], Iterator[Finding]], ...] = (
    check_meta,
    check_names,
    check_numbers,
    check_stream_keys,
    check_rows,
    check_unused,
    check_orphans,
    check_group_numbers,
    check_message_numbers,
    check_garbage,
)


class StreamCheck(Protocol):
    """A check of one stream; a name of None is that of a stream that has lost its own."""

    def __call__(
        self, tables: Tables, number: int, name: bytes | None, *, quick: bool = False
    ) -> Iterator[Finding]: ...


STREAM_CHECKS: tuple[StreamCheck, ...] = (check_stream, check_groups, check_messages)


class Progress:
    """How far a check is, in pages of the data file; `moved` is called now and then.

    Attributes:
        total: what there is to do, in pages; 0 until that is known.
        done: what has been done.
    """

    def __init__(self, moved: Callable[[Progress], None] | None = None) -> None:
        self.total = 0
        self.done = 0
        self._moved = moved

    def begin(self, pages: int) -> None:
        """Begin a check of so many pages."""
        self.total = pages
        self.advance(0)

    def advance(self, pages: int) -> None:
        """Note that pages have been checked."""
        self.done += pages
        if self._moved is not None:
            self._moved(self)


def check(
    store: Store[Any] | str | Path,
    *,
    quick: bool = False,
    stream: bytes | None = None,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Yield everything that is wrong with a store.

    A store in use is checked as of the newest commit, and used on meanwhile. One that needs
    recovery is checked as of the commit to which recovery goes back. Nothing is changed.

    Args:
        store: an open store, or the path of one.
        quick: look at all rows, checksums and counts, but at the entries only in the oldest and
            newest node of each stream.
        stream: check only this stream, and LMDB's pages.

    Raises:
        NotAStoreError, FormatVersionError, StoreLockedError: there is nothing that can be checked.
        NoSuchKeyError: the stream does not exist.
    """
    progress = progress or Progress()
    if isinstance(store, Store):
        with store.snapshot() as snapshot:
            source = Source(store.path.absolute())
            try:
                see_snapshot(source, snapshot.txn)
                yield from check_source(source, quick=quick, stream=stream, progress=progress)
            finally:
                source.close()
        return
    with open_source(Path(store).absolute()) as source:
        yield from check_source(source, quick=quick, stream=stream, progress=progress)


def check_source(
    source: Source, *, quick: bool, stream: bytes | None, progress: Progress
) -> Iterator[Finding]:
    """Run every check on one commit of a store."""
    yield from source.found
    tables = source.tables
    if tables is None:
        return
    nodes = tables.tree(NODES).database
    progress.begin(tables.meta.last_page + nodes.overflow_pages)
    yield from PageWalk(tables, progress.advance).findings()
    if stream is not None:
        yield from _check_one(tables, stream, quick)
        return
    yield from check_files(source)
    for check_all in STORE_CHECKS:
        yield from guarded(check_all(tables))
    for number, name in named_streams(tables):
        yield from _check_stream(tables, number, name, quick, progress)
    for number in nameless_streams(tables):
        yield from _check_stream(tables, number, None, quick, progress)


def _check_stream(
    tables: Tables, number: int, name: bytes | None, quick: bool, progress: Progress
) -> Iterator[Finding]:
    for check_one in STREAM_CHECKS:
        yield from guarded(check_one(tables, number, name, quick=quick))


def _check_one(tables: Tables, wanted: bytes, quick: bool) -> Iterator[Finding]:
    """Check the stream with a name."""
    exists = False
    for number, name in named_streams(tables):
        if name == wanted:
            exists = True
            yield from _check_stream(tables, number, name, quick, Progress())
    if not exists:
        raise NoSuchKeyError("no such key")
