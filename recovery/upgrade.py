"""Upgrade of a store to the present format: a converted copy of its data file takes its place.

1. Opening the store recovers it, and finishes an upgrade that was cut off after step 4.
2. A compacted copy of `data.mdb` is written beside the original, in the folder of a compaction, and
   converted: one step for each version (`STEPS`), all in one transaction.
3. The copy is verified. Each row is compared with the original, except those that a step converts,
   and fsck checks the copy together with the archive.
4. A rename decides: the copy replaces the original (`engine/store/swap.py`). Until then the
   original is unchanged, so a crash leaves the old store or the new one. The upgrade is then run
   again: before the rename from the start, after it there is nothing left to do.

Segments of the archive keep their format, which has its own number. Each step stays in this table
for as long as there may be stores of its version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.crash_recovery.state import WayName
from streamkeep.engine.crash_recovery.stored_version import META_EPOCH, META_FORMAT
from streamkeep.engine.store.meta import keep_quiet
from streamkeep.engine.store.place import find_folder
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.whole_store.compact import Rewriting, rewrite
from streamkeep.format.core.checksum import open_row, seal_row
from streamkeep.format.core.errors import CorruptionError, NotAStoreError
from streamkeep.format.core.keys import KEYS, META, NAMES, ROWS, TABLES, UNUSED_TABLES, pack_number
from streamkeep.format.core.versions import STORE_VERSION
from streamkeep.format.rows.records import decode_key_row, decode_number, encode_number
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.fsck.progress import Progress, Scope
from streamkeep.recovery.fsck.source import Source, read_metas
from streamkeep.recovery.fsck.store import check_source
from streamkeep.recovery.pages.page_file import PageFile
from streamkeep.recovery.pages.tree import Tables

Advance = Callable[[str, int, int], None]  # step, done, total
Step = Callable[[lmdb.Environment, "lmdb.Transaction[bytes]"], None]

_ROWS_AT_ONCE: Final = 4096  # between two reports of the comparison


class Upgraded(NamedTuple):
    """The result of an upgrade.

    Attributes:
        before, after: versions of the store format; the same if there was nothing to do.
        before_bytes, after_bytes: size of `data.mdb`.
        epoch: the new epoch of the store; 0 if there was nothing to do.
    """

    before: int
    after: int
    before_bytes: int
    after_bytes: int
    epoch: int


def _drop_unused(raw: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> None:
    """From 1 to 2: remove two tables, which are empty in every store."""
    for name in UNUSED_TABLES:
        if txn.get(name.encode()) is not None:
            txn.drop(raw.open_db(name.encode(), txn, create=False))


def _add_rows(raw: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> None:
    """From 2 to 3: add the table of rows; rows of consumers may say under which lease they work."""
    raw.open_db(TABLES[ROWS].name.encode(), txn)


def _add_names(raw: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> None:
    """From 3 to 4: add the table with the name of each stream by its number."""
    keys = raw.open_db(TABLES[KEYS].name.encode(), txn, create=False)
    names = raw.open_db(TABLES[NAMES].name.encode(), txn)
    for db_key, value in txn.cursor(keys):
        number, name = decode_key_row(open_row(KEYS, db_key, value, "key row"), "key row")
        txn.put(pack_number(number), seal_row(NAMES, pack_number(number), name), db=names)


# Each from its version to the next.
STEPS: Final[dict[int, Step]] = {1: _drop_unused, 2: _add_rows, 3: _add_names}


def stored_version(path: str | Path) -> int:
    """Return the version of the format of a store that needs no recovery.

    Raises:
        NotAStoreError: there is no store.
        CorruptionError: the version cannot be read.
    """
    path = Path(path).absolute()
    folder = find_folder(path)
    if folder is None or not folder.exists(DATA_FILE):
        raise NotAStoreError(f"{path}: no such store")
    metas, _ = read_metas(folder)
    if not metas:
        raise CorruptionError(str(path), "no meta page can be read; next: run `streamkeep repair`")
    pages = PageFile(folder, metas[-1].page_size)
    try:
        body = Tables(pages, metas[-1]).get_row(META, META_FORMAT, "meta")
    finally:
        pages.close()
    if body is None:
        raise NotAStoreError(f"{path}: an LMDB environment, but not a Streamkeep store")
    return decode_number(body, "meta")


def upgrade(
    path: str | Path,
    *,
    force_recovery: WayName | None = None,
    progress: Advance | None = None,
    clock: Clock | None = None,
) -> Upgraded:
    """Bring a store to the present format; no process may have it open.

    Atomic and durable: a crash at any step leaves the old store or the new one, and the upgrade is
    then run again. It needs as much free disk space as the pages in use take. Entries, IDs, groups,
    counters and the archive do not change. A store of the present format is left as it is.

    Args:
        force_recovery: as for `open`: for a store that has lost commits of its journal.
        progress: called with the name of a step, and how much of how much is done: "copy" in
            bytes, "compare" in rows, "check" in pages and nodes.

    Raises:
        NotAStoreError, FormatVersionError: there is no store that can be upgraded.
        StoreLockedError: the store is open, in this process or another.
        RecoveryNeededError: the store has lost commits, and `force_recovery` is None.
        CorruptionError: the store is damaged; it is unchanged. `repair` writes the present format.
        StoreFullError: there is no room for the copy; the store is unchanged.
    """
    path = Path(path).absolute()
    keep_quiet(path)
    Store(path, create=False, force_recovery=force_recovery, clock=clock).close()
    before = stored_version(path)
    size = (path / DATA_FILE).stat().st_size
    if before == STORE_VERSION:
        return Upgraded(before, before, size, size, 0)

    def report(step: str, done: int, total: int) -> None:
        if progress is not None:
            progress(step, done, total)

    def convert(raw: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> None:
        for version in range(before, STORE_VERSION):
            STEPS[version](raw, txn)
        meta = raw.open_db(TABLES[META].name.encode(), txn, create=False)
        row = seal_row(META, META_FORMAT, encode_number(STORE_VERSION))
        txn.put(META_FORMAT, row, db=meta)

    def verify(old: Folder, new: Folder) -> None:
        failpoints.hit("upgrade:copied")
        _compare(old, new, report)
        _check(old, new, report)
        failpoints.hit("upgrade:checked")

    done = rewrite(
        path,
        Rewriting(convert, verify),
        lambda done: report("copy", done, size),
        clock,
    )
    return Upgraded(before, STORE_VERSION, done.before_bytes, done.after_bytes, done.epoch)


def _compare(old: Folder, new: Folder, report: Advance) -> None:
    """Raise CorruptionError unless a copy has the rows of the original, and no others."""
    with (
        _opened(old) as ours,
        _opened(new) as theirs,
        ours.begin() as left,
        theirs.begin() as right,
    ):
        total = sum(left.stat(_table(ours, left, name))["entries"] for name in _tables(left))
        done = 0
        for name in _tables(left):
            one, other = _table(ours, left, name), _table(theirs, right, name)
            copies = _rows(right, other, name)
            for row, copied in zip(_rows(left, one, name), copies, strict=False):
                if row != copied:
                    raise CorruptionError(f"table {name}", f"the copy lacks the row {row[0]!r}")
                done += 1
                if done % _ROWS_AT_ONCE == 0:
                    report("compare", done, total)
            if left.stat(one)["entries"] != right.stat(other)["entries"]:
                raise CorruptionError(f"table {name}", "the copy has another number of rows")
        report("compare", total, total)


def _tables(txn: lmdb.Transaction[bytes]) -> list[str]:
    """Return the names of the tables that a store has and that no step removes."""
    return [one.name for one in TABLES.values() if txn.get(one.name.encode()) is not None]


def _opened(folder: Folder) -> lmdb.Environment:
    folder.check_file(DATA_FILE)
    path = str(folder.path)
    return lmdb.open(path, readonly=True, lock=False, max_dbs=len(TABLES) + 1, create=False)


def _table(raw: lmdb.Environment, txn: lmdb.Transaction[bytes], name: str) -> lmdb._Database:
    return raw.open_db(name.encode(), txn, create=False)


def _rows(
    txn: lmdb.Transaction[bytes], table: lmdb._Database, name: str
) -> Iterable[tuple[bytes, bytes]]:
    """Yield the rows of a table, without the rows of `meta` that an upgrade changes."""
    changed = (META_FORMAT, META_EPOCH) if name == TABLES[META].name else ()
    with txn.cursor(table) as cursor:
        for row in cursor:
            if row[0] not in changed:
                yield row


def _check(old: Folder, new: Folder, report: Advance) -> None:
    """Raise CorruptionError if fsck finds something in a copy, with the archive of the original."""
    source = Source(old)
    metas, found = read_metas(new)
    if found or not metas:
        raise CorruptionError(str(new.path), "the copy has no sound meta page")
    source.tables = Tables(PageFile(new, metas[-1].page_size), metas[-1])
    scope = Scope(progress=Progress(lambda state: report("check", state.done, state.total)))
    try:
        for one in check_source(source, scope):
            if one.severity is not Severity.NOTE:
                raise CorruptionError(
                    one.where,
                    f"{one.code}: {one.problem}; the store is as it was; next: `streamkeep repair` "
                    "saves what is left in a store of the present format",
                )
    finally:
        source.close()
