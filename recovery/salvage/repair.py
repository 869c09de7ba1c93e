"""Repair: save everything readable of a damaged store in a new one, and report what was lost.

    1. `search`: find what is readable, in the trees, in the journal after their commit, and in
       pages without a tree;
    2. stream by stream, the engine writes it into a new store: it makes all that can be derived;
    3. check the new store.

The damaged store is not changed. A repair of a sound store writes the same store again.
"""

from __future__ import annotations

import heapq
import os
import shutil
import tempfile
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.crash_recovery.stored_rows import META_EPOCH, META_UUID
from streamkeep.engine.store.meta import META_CREATED, META_FORMAT
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.progress import Advance
from streamkeep.engine.tables.group import NEXT_GROUP
from streamkeep.engine.txn.txn import NEXT_GARBAGE, NEXT_STREAM
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError, StoreError
from streamkeep.format.core.keys import META, ROWS, STREAMS, pack_number
from streamkeep.format.humanize import count_text, size_text
from streamkeep.format.rows.meta_rows import BATCH_PREFIX
from streamkeep.format.rows.records import LAST_EPOCH, STORE_VERSION, decode_number, encode_number
from streamkeep.recovery.fsck.findings import Finding, Severity
from streamkeep.recovery.fsck.rows import check_meta_row
from streamkeep.recovery.fsck.source import Source, open_source
from streamkeep.recovery.fsck.store import LOST_AND_FOUND, check
from streamkeep.recovery.salvage import groups
from streamkeep.recovery.salvage.archive import ArchiveWriter
from streamkeep.recovery.salvage.damaged_bytes import ByteGuesser
from streamkeep.recovery.salvage.found import NAMED, Found
from streamkeep.recovery.salvage.losses import LostAndFound, Report
from streamkeep.recovery.salvage.new_store import NewStore, new_store
from streamkeep.recovery.salvage.search import Search
from streamkeep.recovery.salvage.streams import StreamWriter

# Counters of numbers that nothing in the new store has yet.
_NEW_NUMBERS: Final = (NEXT_STREAM, NEXT_GROUP, NEXT_IDEMPOTENCE, NEXT_GARBAGE)


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair.

    Attributes:
        report: what was rebuilt and what was lost.
        findings: findings about the new store; none above NOTE, unless there is a bug.
        items: number of items in lost+found.
        lost_and_found: path of the folder; None if there are no items.
    """

    report: Report
    findings: list[Finding]
    items: int
    lost_and_found: Path | None

    def damaged(self) -> bool:
        return any(one.severity > Severity.NOTE for one in self.findings)


def repair(
    store: Path | str, output: Path | str, *, progress: Advance = lambda pages: None
) -> Repaired:
    """Save everything readable of `store` in a new store at `output`. Never changes `store`.

    `output` appears as a whole, durable; a failed repair leaves nothing there.

    Args:
        output: path of the new store; must not exist or must be an empty folder.
        progress: called with the number of pages read since the last call.

    Raises:
        NotAStoreError, FormatVersionError, StoreLockedError: `store` cannot be read.
        StoreError: `output` cannot be written.
    """
    store = path_of(store, "store").absolute()
    output = path_of(output, "output").absolute()
    if store.resolve() in output.resolve().parents:
        raise StoreError(f"{output}: it is in the damaged store; next: name a new folder elsewhere")
    guesser = ByteGuesser()
    with open_source(store, guesser.node) as source:
        replay = source.replay if source.loses else None
        unread = [] if replay is None else replay.salvage(source.made)
        if source.unread:
            unread.append(f"what data.mdb had at commit {source.unread} and none of its pages has")
        with new_store(output, source.folder.modes) as out:
            lost = LostAndFound(out.folder)
            with closing(Found(out.scratch, source.tables, lost)) as found:
                report = found.report
                report.other += unread
                search = Search(source, found, progress, guesser)
                search.run()
                _write(source, search, out)
    aside = output / LOST_AND_FOUND if lost.items else None
    return Repaired(report, list(check(output)), lost.items, aside)


def _write(source: Source, search: Search, out: NewStore) -> None:
    found, report = search.found, search.report
    meta = _meta(source, search)
    highest = decode_number(meta.pop(NEXT_STREAM, encode_number(1)), "meta") - 1
    out.open({name: body for name, body in meta.items() if name not in _NEW_NUMBERS})
    archive = ArchiveWriter(source, search, out)
    streams = StreamWriter(source, search, out, archive)
    live = ((number, True) for number in streams.numbers())
    archived = ((number, False) for number in archive.numbers())
    for number, is_live in heapq.merge(live, archived, key=lambda one: one[0]):
        highest = max(highest, number)
        if is_live:
            name = streams.write(number)
            groups.write_groups(found, out, number, name)
            groups.write_messages(found, out, number, name)
        else:
            archive.write(number)
    if (lost := search.missing_rows(STREAMS) - streams.without_record) > 0:
        report.other.append(f"{count_text(lost, 'stream')}, of which nothing is left")
    groups.move_groups(found)
    groups.move_messages(found)
    for db_key, value in found.rows(ROWS):
        out.txn(len(value)).put(ROWS, db_key, value)
    txn = out.txn()
    for counter, following in {NEXT_STREAM: highest + 1, **archive.counters()}.items():
        body = txn.get_row(META, counter, "meta")
        if body is None or decode_number(body, "meta") < following:
            txn.put_row(META, counter, encode_number(following))
    for loss in report.streams.values():
        known = found.noted(NAMED + pack_number(loss.number))
        loss.name = loss.name if known is None else known


def _meta(source: Source, search: Search) -> dict[bytes, bytes]:
    """Return the rows of `meta` that can be read, and those that a store must have."""
    found, slot = search.found, source.slot
    meta: dict[bytes, bytes] = {}
    for name, value in found.rows(META):
        try:
            body = row_body(META, name, value, "meta")
            check_meta_row(name, body, "meta")
            meta[name] = body
        except CorruptionError as error:
            found.hide(META, name)
            if name.startswith(BATCH_PREFIX):
                search.report.other.append(f"the last batch of an application: {error.problem}")
    stored = decode_number(meta[META_EPOCH], "meta") if META_EPOCH in meta else 0
    epoch = 1 + max(search.highest_epoch, stored, 0 if slot is None else slot.epoch)
    new_uuid = uuid.uuid4().bytes if slot is None else slot.store_uuid
    created = encode_number(Clock().now_ms())
    return {
        META_UUID: new_uuid,
        META_CREATED: created,
        **meta,
        META_FORMAT: encode_number(STORE_VERSION),
        META_EPOCH: encode_number(min(epoch, LAST_EPOCH)),
    }


def try_repair(
    store: Path | str, *, scratch: Path | None = None, progress: Advance = lambda pages: None
) -> Repaired:
    """Repair into a temporary folder and remove it, to see what would be lost.

    Args:
        scratch: folder for the temporary folder, which needs about as much space as the store. By
            default the folder of the store; the system's temporary folder if that is not writable.

    Raises:
        StoreError: there is not enough space.
    """
    store = path_of(store, "store").absolute()
    if scratch is None:
        scratch = store.parent if os.access(store.parent, os.W_OK) else Path(tempfile.gettempdir())
    _check_room(store, scratch)
    with tempfile.TemporaryDirectory(prefix=".streamkeep-repair-", dir=scratch) as folder:
        return repair(store, Path(folder) / "store", progress=progress)


def _check_room(store: Path, folder: Path) -> None:
    """Raise StoreError if a copy of the store does not fit."""
    needed = 0
    for path in store.rglob("*"):
        with suppress(FileNotFoundError):  # another process may be using the store
            needed += path.lstat().st_blocks * 512
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error
    if free < needed:
        raise StoreError(
            f"{folder}: a trial repair needs about {size_text(needed)} for a temporary copy, "
            f"{size_text(free)} are free; name another folder (scratch, --scratch)"
        )
