"""Checks that names and numbers of streams agree, and that all rows belong to a stream.

Rows of `keys` are sorted by name, records by number. The numbers of the names are sorted on disk
and merged with the records, so the memory needed does not grow with the number of streams.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeep.engine.txn.txn import NEXT_STREAM
from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    GARBAGE,
    KEYS,
    NAMES,
    NODES,
    STREAMS,
    name_key,
    pack_number,
    unpack_number,
)
from streamkeep.format.rows.records import STREAM_NODES, decode_key_row
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding, quoted
from streamkeep.recovery.fsck.rows import Rows, numbers_in, row_place
from streamkeep.recovery.fsck.single_rows import check_counter
from streamkeep.recovery.fsck.sorting import SortedPairs
from streamkeep.recovery.pages.tree import Tables


class KeyRow:
    """A row of `keys`: the name and the number of a stream."""

    def __init__(self, db_key: bytes, value: bytes) -> None:
        """Parse a row; raise CorruptionError."""
        where = f"key row {quoted(db_key)}"
        self.number, self.name = decode_key_row(open_row(KEYS, db_key, value, where), where)


def named_streams(tables: Tables) -> Iterator[tuple[int, bytes]]:
    """Yield (number, name) of every readable row of `keys`, in the order of the keys."""
    for one in tables.walk(KEYS):
        try:
            row = KeyRow(one.key, one.value())
        except CorruptionError:
            continue  # reported by check_names
        yield row.number, row.name


def nameless_streams(tables: Tables) -> Iterator[int]:
    """Yield the numbers of streams without a name."""
    for number, names in _names_of(tables, _numbers(tables)):
        if names == 0:
            yield number


def check_names(tables: Tables) -> Iterator[Finding]:
    """SK001, SK010, SK012: every row of `keys` has the key of its name, and a stream record."""
    for one in tables.walk(KEYS):
        db_key = one.key
        try:
            row = KeyRow(db_key, one.value())
        except CorruptionError as error:
            yield finding("SK001", f"key row {quoted(db_key)}", error.problem)
        else:
            if name_key(b"", row.name) != db_key:
                problem = f"the row contains the name {quoted(row.name)}"
                yield finding("SK010", f"key row {quoted(db_key)}", problem)
            if tables.lacks(STREAMS, pack_number(row.number)):
                problem = f"stream number {row.number} has no record"
                yield finding("SK012", f"stream {quoted(row.name)}", problem)


def check_second_names(tables: Tables) -> Iterator[Finding]:
    """SK001, SK016: `names` has the name of each stream, and no others."""
    for number, name in named_streams(tables):
        db_key = pack_number(number)
        try:
            second = tables.get_row(NAMES, db_key, "names")
        except CorruptionError:
            continue  # reported below
        if second != name and (second is not None or tables.lacks(NAMES, db_key)):
            problem = "lacks it" if second is None else f"has {quoted(second)}"
            yield finding("SK016", f"stream {quoted(name)}", f"`names` {problem}")
    for one in tables.walk(NAMES):
        try:
            open_row(NAMES, one.key, one.value(), row_place(NAMES, one.key))
            number = unpack_number(one.key)
        except CorruptionError as error:
            yield finding("SK001", row_place(NAMES, one.key), error.problem)
        else:
            if tables.lacks(STREAMS, one.key):
                yield finding("SK016", f"stream {number}", "`names` has it, but it has no record")


def check_numbers(tables: Tables) -> Iterator[Finding]:
    """SK011, SK013, SK014, SK015: every stream has one name and is not listed as garbage."""
    numbers = _numbers(tables)
    all_named = tables.complete(KEYS)
    garbage = Rows(tables).garbage(STREAM_NODES).firsts()
    highest = 0
    for number, names in _names_of(tables, numbers):
        highest = max(highest, number)
        if names == 0 and all_named:
            yield finding("SK013", f"stream {number}", "no row of keys refers to it")
        elif names > 1:
            yield finding("SK011", f"stream {number}", f"{names} names refer to it")
        if garbage.has(number):
            yield finding("SK015", f"stream {number}", "its nodes are listed as garbage")
    yield from check_counter(tables, NEXT_STREAM, highest)


def check_orphans(tables: Tables) -> Iterator[Finding]:
    """SK112: every macro node belongs to a stream that exists."""
    garbage = Rows(tables).garbage(STREAM_NODES).firsts()
    if not tables.complete(GARBAGE):
        return
    for number in numbers_in(tables, NODES):
        if tables.lacks(STREAMS, pack_number(number)) and not garbage.has(number):
            yield finding("SK112", f"stream {number}", "macro nodes without a stream record")


def _numbers(tables: Tables) -> SortedPairs:
    """Return the stream numbers of all names."""
    numbers = SortedPairs()
    for number, _ in named_streams(tables):
        numbers.add(number)
    return numbers


def _names_of(tables: Tables, numbers: SortedPairs) -> Iterator[tuple[int, int]]:
    """Yield the number of each stream record, and how many names refer to it."""
    named = iter(numbers)
    following = next(named, None)
    for row in tables.walk(STREAMS):
        try:
            number = unpack_number(row.key)
        except CorruptionError:
            continue  # reported by check_stream_keys
        names = 0
        while following is not None and following[0] <= number:
            names += following[0] == number
            following = next(named, None)
        yield number, names
