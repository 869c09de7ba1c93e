"""Checks that names and numbers agree: consumers of a group, and producers of a stream.

Both have two rows: one with the name as its key and the record, and one that maps the number to
the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamkeep.format.core.keys import name_key, number_key
from streamkeep.recovery.fsck.findings import Finding, finding, quoted
from streamkeep.recovery.fsck.rows import Member, Rows, Shape


class MemberKind(NamedTuple):
    """Consumers or producers: the shape of their rows, and the codes of their findings."""

    noun: str
    shape: Shape[Member | bytes | int]
    misplaced: str
    unmatched: str
    not_given: str


def check_members(
    rows: Rows, kind: MemberKind, prefix: bytes, following: int, where: str
) -> Iterator[Finding]:
    """SK221 to SK223, SK251 to SK253: the rows for names and for numbers agree.

    Args:
        following: the number that the next member would get.
    """
    for db_key, row in rows.under(kind.shape, prefix):
        if isinstance(row, bytes):
            yield from _check_number(rows, kind, prefix, db_key, row, where)
        elif isinstance(row, Member):
            place = f"{where} {kind.noun} {quoted(row.name)}"
            if name_key(prefix, row.name) != db_key:
                yield finding(kind.misplaced, place, "the row has the key of another name")
                continue
            if not 0 < row.number < following:
                problem = f"the number is {row.number}, the next number is {following}"
                yield finding(kind.not_given, place, problem)
            by_number = number_key(prefix, row.number)
            name = rows.get(kind.shape, by_number)
            if rows.lacks(kind.shape, by_number):
                yield finding(kind.unmatched, place, f"there is no row for number {row.number}")
            elif isinstance(name, bytes) and name != row.name:
                problem = f"number {row.number} has the name {quoted(name)}"
                yield finding(kind.unmatched, place, problem)


def _check_number(
    rows: Rows, kind: MemberKind, prefix: bytes, db_key: bytes, name: bytes, where: str
) -> Iterator[Finding]:
    number = int.from_bytes(db_key[len(prefix) + 1 :], "big")
    place = f"{where} {kind.noun} number {number}"
    by_name = name_key(prefix, name)
    member = rows.get(kind.shape, by_name)
    if rows.lacks(kind.shape, by_name):
        problem = f"it has the name {quoted(name)}, which does not exist"
        yield finding(kind.unmatched, place, problem)
    elif isinstance(member, Member) and member.number != number:
        problem = f"it has the name {quoted(name)}, whose number is {member.number}"
        yield finding(kind.unmatched, place, problem)
