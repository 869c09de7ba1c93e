"""Checking a whole store: every check, on every stream, as of one commit.

Nothing is changed, and no damage can crash the process: `recovery.pages` reads LMDB's file, not
LMDB. Damage ends one check, not the run. It is reported once, by the check for it; other checks
skip what they cannot read, and do not compare counts that lack it.

Findings are in the order of the store's keys, so that two runs can be compared.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from streamkeep.engine.api.store import Store
from streamkeep.engine.store.survey import STORE_NAMES
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.progress import StepProgress
from streamkeep.format.core.errors import CorruptionError, NoSuchKeyError
from streamkeep.format.core.keys import NODES, TABLES
from streamkeep.recovery.fsck import groups, streams
from streamkeep.recovery.fsck.archive import check_archive
from streamkeep.recovery.fsck.findings import Finding, Progress, Scope, Severity, finding, guarded
from streamkeep.recovery.fsck.pages import PageWalk
from streamkeep.recovery.fsck.rows import check_garbage, check_meta, check_rows
from streamkeep.recovery.fsck.source import Source, open_source
from streamkeep.recovery.pages.tree import Tables

LOST_AND_FOUND: Final = "lost+found"  # folder in which repair saves what belongs nowhere


def check(
    store: Store[Any] | str | Path,
    *,
    quick: bool = False,
    stream: bytes | None = None,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Yield a finding for every problem of a store. Changes nothing.

    A store in use is checked as of its newest commit and can be used during the check. A store
    that was not closed is checked as its recovery would leave it, and no process can open it
    during the check.

    Args:
        store: an open store, or the path of one.
        quick: check all rows, checksums and counts, but the entries of only the oldest and the
            newest node of each stream.
        stream: check only the stream with this name, and LMDB's pages.

    Raises:
        NotAStoreError, FormatVersionError, StoreLockedError: the store cannot be checked.
        NoSuchKeyError: the stream does not exist.
    """
    scope = Scope(quick, progress)
    path = store.path if isinstance(store, Store) else path_of(store, "store")
    with open_source(path.absolute()) as source:
        yield from check_source(source, scope, stream)


def check_whole(
    path: Path, progress: StepProgress, undone: str, told: Container[str] = ()
) -> tuple[Finding, ...]:
    """Check a copy that was just made; raise CorruptionError for damage, which it was given.

    Args:
        progress: takes "check", and how much of how much is done.
        undone: what does not happen because of damage.
        told: codes of findings that are returned, too.

    Returns:
        what is wrong with the archive in an object store. That is no part of the copy, and the
        store may have gone on there since: an earlier state must be restored all the same.
    """
    returned = []
    moved = Progress(lambda state: progress("check", state.done, state.total))
    for found in check(path, progress=moved):
        if found.elsewhere or found.code in told:
            returned.append(found)
        elif found.severity is not Severity.NOTE:
            raise CorruptionError(found.where, f"{found.code}: {found.problem}; {undone}")
    return tuple(returned)


def check_source(source: Source, scope: Scope, stream: bytes | None = None) -> Iterator[Finding]:
    """Run every check on one commit of a store."""
    yield from source.found
    tables = source.tables
    if tables is None:
        return
    progress = scope.progress
    databases = {table: tables.tree(table).database for table in TABLES}
    pages = sum(one.branch_pages + one.leaf_pages for one in databases.values())
    progress.size_bytes = (tables.meta.last_page + 1) * tables.pages.page_size
    with suppress(CorruptionError):
        progress.commit_number = tables.newest_commit()
    progress.begin(pages + databases[NODES].entries)
    yield from PageWalk(tables, progress.advance).findings()
    if stream is not None:
        numbers = [number for number, name in streams.named_streams(tables) if name == stream]
        for number in numbers:
            yield from _check_stream(tables, number, stream, scope)
        if not numbers:
            raise NoSuchKeyError("no such key")
        return
    yield from check_strays(source)
    yield from guarded(check_archive(source, tables, scope))
    for check_all in (
        check_meta,
        streams.check_names,
        streams.check_numbers,
        streams.check_stream_keys,
        check_rows,
        streams.check_orphans,
        groups.check_group_numbers,
        groups.check_message_numbers,
        check_garbage,
    ):
        yield from guarded(check_all(tables))
    for number, name in streams.named_streams(tables):
        yield from _check_stream(tables, number, name, scope)
    for number in streams.nameless_streams(tables):
        yield from _check_stream(tables, number, None, scope)


def _check_stream(
    tables: Tables, number: int, name: bytes | None, scope: Scope
) -> Iterator[Finding]:
    for check_one in (streams.check_stream, groups.check_groups, groups.check_messages):
        yield from guarded(check_one(tables, number, name, scope))


def check_strays(source: Source) -> Iterator[Finding]:
    """SK025: the folder contains only files of the store."""
    for name in source.folder.names():
        if name not in STORE_NAMES and name != LOST_AND_FOUND:
            yield finding("SK025", name, "unknown file, left as it is")
