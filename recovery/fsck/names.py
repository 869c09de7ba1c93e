"""Checks that names and numbers of streams agree, and that all rows belong to a stream.

Rows of `keys` are sorted by name, records by number. The numbers of the names are sorted on disk
and merged with the records, so the memory needed does not grow with the number of streams.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeep.engine.txn.txn import NEXT_STREAM
from streamkeep.format.core import keys
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.rows.records import STREAM_NODES
from streamkeep.recovery.fsck import rows as shapes
from streamkeep.recovery.fsck.findings import Finding, finding, quoted
from streamkeep.recovery.fsck.rows import Rows
from streamkeep.recovery.fsck.sorting import SortedPairs
from streamkeep.recovery.pages.tree import Tables


def named_streams(tables: Tables) -> Iterator[tuple[int, bytes]]:
    """Yield (number, name) of every readable row of `keys`, in the order of the keys."""
    return (named for _, named in Rows(tables).under(shapes.KEY_SHAPE))


def nameless_streams(tables: Tables) -> Iterator[int]:
    return (number for number, names in _names_of(tables) if names == 0)


def check_names(tables: Tables) -> Iterator[Finding]:
    """SK010, SK012, SK016: every name has its key, a record, and its row in `names`."""
    rows = Rows(tables)
    for db_key, (number, name) in rows.under(shapes.KEY_SHAPE):
        where = f"stream {quoted(name)}"
        if keys.name_key(b"", name) != db_key:
            problem = f"the row contains the name {quoted(name)}"
            yield finding("SK010", shapes.row_place(keys.KEYS, db_key), problem)
        if tables.lacks(keys.STREAMS, keys.pack_number(number)):
            yield finding("SK012", where, f"stream number {number} has no record")
        second = rows.get(shapes.NAME_SHAPE, keys.pack_number(number))
        if second is not None and second != name:
            yield finding("SK016", where, f"`names` has {quoted(second)}")
        elif rows.lacks(shapes.NAME_SHAPE, keys.pack_number(number)):
            yield finding("SK016", where, "`names` lacks it")
    for db_key, _ in rows.under(shapes.NAME_SHAPE):
        if tables.lacks(keys.STREAMS, db_key):
            where = f"stream {keys.unpack_number(db_key)}"
            yield finding("SK016", where, "`names` has it, but it has no record")


def check_numbers(tables: Tables) -> Iterator[Finding]:
    """SK011, SK013, SK014, SK015: every stream has one name and is not listed as garbage."""
    garbage = Rows(tables).garbage(STREAM_NODES).firsts()
    highest = 0
    for number, names in _names_of(tables):
        highest = max(highest, number)
        if names == 0 and tables.complete(keys.KEYS):
            yield finding("SK013", f"stream {number}", "no row of keys refers to it")
        elif names > 1:
            yield finding("SK011", f"stream {number}", f"{names} names refer to it")
        if garbage.has(number):
            yield finding("SK015", f"stream {number}", "its nodes are listed as garbage")
    yield from shapes.check_counter(tables, NEXT_STREAM, highest)


def check_orphans(tables: Tables) -> Iterator[Finding]:
    """SK112: every macro node belongs to a stream that exists."""
    garbage = Rows(tables).garbage(STREAM_NODES).firsts()
    if not tables.complete(keys.GARBAGE):
        return
    for number in shapes.numbers_in(tables, keys.NODES):
        if tables.lacks(keys.STREAMS, keys.pack_number(number)) and not garbage.has(number):
            yield finding("SK112", f"stream {number}", "macro nodes without a stream record")


def _names_of(tables: Tables) -> Iterator[tuple[int, int]]:
    """Yield the number of each stream record, and how many names refer to it."""
    numbers = SortedPairs()
    for number, _ in named_streams(tables):
        numbers.add(number)
    named = iter(numbers)
    following = next(named, None)
    for row in tables.walk(keys.STREAMS):
        try:
            number = keys.unpack_number(row.key)
        except CorruptionError:
            continue  # reported by check_stream_keys
        names = 0
        while following is not None and following[0] <= number:
            names += following[0] == number
            following = next(named, None)
        yield number, names
