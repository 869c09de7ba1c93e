"""Checks that names and numbers agree: consumers of a group, and producers of a stream.

Both have two rows: one with the name as its key and the record, and one that maps the number to
the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamkeep.format.core.keys import name_key, number_key
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding, quoted
from streamkeep.recovery.fsck.rows import LeaseRow, Member, NameOf, Rows, Shape


class MemberKind(NamedTuple):
    """Consumers or producers: the shape of their rows, and the codes of their findings."""

    noun: str
    shape: Shape[Member | NameOf | LeaseRow]
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
    for row in rows.under(kind.shape, prefix):
        if isinstance(row, NameOf):
            yield from _check_number(rows, kind, prefix, row, where)
        elif isinstance(row, Member):
            yield from _check_name(rows, kind, prefix, row, following, where)


def _check_name(
    rows: Rows, kind: MemberKind, prefix: bytes, member: Member, following: int, where: str
) -> Iterator[Finding]:
    place = f"{where} {kind.noun} {quoted(member.name)}"
    if name_key(prefix, member.name) != member.db_key:
        yield finding(kind.misplaced, place, "the row has the key of another name")
        return
    if not 0 < member.number < following:
        problem = f"the number is {member.number}, the next number is {following}"
        yield finding(kind.not_given, place, problem)
    db_key = number_key(prefix, member.number)
    if rows.lacks(kind.shape, db_key):
        yield finding(kind.unmatched, place, f"there is no row for number {member.number}")
        return
    name_of = rows.get(kind.shape, db_key)
    if isinstance(name_of, NameOf) and name_of.name != member.name:
        problem = f"number {member.number} has the name {quoted(name_of.name)}"
        yield finding(kind.unmatched, place, problem)


def _check_number(
    rows: Rows, kind: MemberKind, prefix: bytes, name_of: NameOf, where: str
) -> Iterator[Finding]:
    place = f"{where} {kind.noun} number {name_of.number}"
    db_key = name_key(prefix, name_of.name)
    if rows.lacks(kind.shape, db_key):
        problem = f"it has the name {quoted(name_of.name)}, which does not exist"
        yield finding(kind.unmatched, place, problem)
        return
    member = rows.get(kind.shape, db_key)
    if isinstance(member, Member) and member.number != name_of.number:
        problem = f"it has the name {quoted(name_of.name)}, whose number is {member.number}"
        yield finding(kind.unmatched, place, problem)
