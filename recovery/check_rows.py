"""Checks of single rows, whatever they belong to: checksums, counters of `meta`, garbage."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeep.engine.txn import NEXT_GARBAGE, Txn
from streamkeep.format.errors import CorruptionError
from streamkeep.format.keys import META
from streamkeep.format.records import decode_number
from streamkeep.recovery.catalogue import finding
from streamkeep.recovery.findings import Finding
from streamkeep.recovery.rows import GARBAGE_SHAPE, SHAPES, Rows, parse_row, row_place


def check_rows(txn: Txn) -> Iterator[Finding]:
    """SK001: every row of groups, pending entries, idempotency and garbage can be read."""
    for shape in SHAPES:
        for db_key, value in txn.cursor(shape.table):
            try:
                parse_row(shape, db_key, value)
            except CorruptionError as error:
                yield finding("SK001", row_place(shape.table, db_key), error.problem)


def check_garbage(txn: Txn) -> Iterator[Finding]:
    """SK014: no number is given to two rows of garbage."""
    numbers = (row.row_number for row in Rows(txn).under(GARBAGE_SHAPE))
    yield from check_counter(txn, NEXT_GARBAGE, max(numbers, default=0))


def check_counter(txn: Txn, counter: bytes, highest: int) -> Iterator[Finding]:
    """SK002, SK014: a counter of `meta` is above the highest number that it gave."""
    where = f"meta {counter.decode()}"
    try:
        body = txn.get_row(META, counter, where)
        following = 1 if body is None else decode_number(body, where)
    except CorruptionError as error:
        yield finding("SK002", where, error.problem)
        return
    if highest >= following:
        problem = f"the next number would be {following}, {highest} is in use"
        yield finding("SK014", where, problem)
