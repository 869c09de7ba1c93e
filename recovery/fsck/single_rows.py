"""Checks of single rows: checksums, `meta`, garbage, and tables that are not in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.crash_recovery.recover import META_RECOVERY, decode_recovery
from streamkeep.engine.crash_recovery.stored_version import META_EPOCH, META_FORMAT, META_UUID
from streamkeep.engine.store.meta import META_CREATED
from streamkeep.engine.tables.group import NEXT_GROUP
from streamkeep.engine.tables.manifest import NEXT_FILE, NEXT_SEQUENCE
from streamkeep.engine.txn.txn import NEXT_GARBAGE, NEXT_STREAM
from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import META
from streamkeep.format.rows.backup import META_BACKUP, META_LAST_BACKUP, decode_backup
from streamkeep.format.rows.batches import PREFIX as BATCH_PREFIX
from streamkeep.format.rows.batches import decode_batch
from streamkeep.format.rows.following import META_FOLLOWING, decode_following
from streamkeep.format.rows.records import decode_counter, decode_epoch, decode_number, decode_uuid
from streamkeep.format.segment.remote import META_REMOTE, decode_setting
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding
from streamkeep.recovery.fsck.rows import GARBAGE_SHAPE, SHAPES, Rows, parse_row, row_place
from streamkeep.recovery.pages.tree import Tables

_COUNTERS: Final = (
    NEXT_STREAM,
    NEXT_GARBAGE,
    NEXT_GROUP,
    NEXT_IDEMPOTENCE,
    NEXT_SEQUENCE,
    NEXT_FILE,
)
_NEEDED: Final = (META_FORMAT, META_UUID, META_EPOCH)


def check_meta(tables: Tables) -> Iterator[Finding]:
    """SK002: every row of `meta` can be read, and no required row is missing."""
    for row in tables.walk(META):
        name = row.key
        where = f"meta {name.decode(errors='backslashreplace')}"
        try:
            check_meta_row(name, open_row(META, name, row.value(), where), where)
        except CorruptionError as error:
            if name not in _COUNTERS:  # `check_counter` reports these
                yield finding("SK002", where, error.problem)
    for name in _NEEDED:
        if tables.lacks(META, name):
            yield finding("SK002", f"meta {name.decode()}", "the row is missing")


def check_meta_row(name: bytes, body: bytes, where: str) -> None:
    """Raise CorruptionError unless a row of `meta` can be read; accept unknown names."""
    if name == META_UUID:
        decode_uuid(body, where)
    elif name == META_EPOCH:
        decode_epoch(body, where)
    elif name in (META_FORMAT, META_CREATED):
        decode_number(body, where)
    elif name in _COUNTERS:
        decode_counter(body, where)
    elif name == META_RECOVERY:
        decode_recovery(body)
    elif name in (META_BACKUP, META_LAST_BACKUP):
        decode_backup(body, where)
    elif name == META_REMOTE:
        decode_setting(body, where)
    elif name == META_FOLLOWING:
        decode_following(body, where)
    elif name.startswith(BATCH_PREFIX):
        decode_batch(body, name)


def check_rows(tables: Tables) -> Iterator[Finding]:
    """SK001: every row of groups, messages, garbage and manifest can be read."""
    for shape in SHAPES:
        for row in tables.walk(shape.table):
            try:
                parse_row(shape, row.key, row.value())
            except CorruptionError as error:
                yield finding("SK001", row_place(shape.table, row.key), error.problem)


def check_garbage(tables: Tables) -> Iterator[Finding]:
    """SK014: the next number of a row of garbage is not in use."""
    numbers = (row.row_number for row in Rows(tables).under(GARBAGE_SHAPE))
    yield from check_counter(tables, NEXT_GARBAGE, max(numbers, default=0))


def check_counter(tables: Tables, counter: bytes, highest: int) -> Iterator[Finding]:
    """SK002, SK014: a counter of `meta` can be read and is above the highest number in use."""
    where = f"meta {counter.decode()}"
    try:
        body = tables.get_row(META, counter, where)
        following = 1 if body is None else decode_counter(body, where)
    except CorruptionError as error:
        yield finding("SK002", where, error.problem)
        return
    if highest >= following and tables.complete(META):
        problem = f"the next number is {following}, but {highest} is in use"
        yield finding("SK014", where, problem)
