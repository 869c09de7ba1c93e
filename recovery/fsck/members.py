"""Checks of names against numbers: consumers of a group, and producers of a stream.

Both have two rows: one under the name, with the record, and one that leads from number to name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamkeep.format.core.keys import name_key, number_key
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding, quoted
from streamkeep.recovery.fsck.rows import Member, NameOf, Rows, Shape


class MemberKind(NamedTuple):
    """Consumers or producers: their table, and the codes of what may be wrong with them."""

    noun: str
    shape: Shape[Member | NameOf]
    misplaced: str
    unmatched: str
    not_given: str


def check_members(
    rows: Rows, kind: MemberKind, prefix: bytes, following: int, where: str
) -> Iterator[Finding]:
    """SK221 to SK223, SK251 to SK253: names and numbers lead to each other.

    Args:
        following: the number that the next member would get.
    """
    for row in rows.under(kind.shape, prefix):
        if isinstance(row, NameOf):
            yield from _check_number(rows, kind, prefix, row, where)
        else:
            yield from _check_name(rows, kind, prefix, row, following, where)


def _check_name(
    rows: Rows, kind: MemberKind, prefix: bytes, member: Member, following: int, where: str
) -> Iterator[Finding]:
    place = f"{where} {kind.noun} {quoted(member.name)}"
    if name_key(prefix, member.name) != member.db_key:
        yield finding(kind.misplaced, place, "it stands under the key of another name")
        return
    if not 0 < member.number < following:
        problem = f"its number is {member.number}, the next one would get {following}"
        yield finding(kind.not_given, place, problem)
    db_key = number_key(prefix, member.number)
    if rows.lacks(kind.shape, db_key):
        yield finding(kind.unmatched, place, f"no row names number {member.number}")
        return
    name_of = rows.get(kind.shape, db_key)
    if name_of is not None and name_of.name != member.name:
        problem = f"number {member.number} leads to {quoted(name_of.name)}"
        yield finding(kind.unmatched, place, problem)


def _check_number(
    rows: Rows, kind: MemberKind, prefix: bytes, name_of: NameOf, where: str
) -> Iterator[Finding]:
    place = f"{where} {kind.noun} number {name_of.number}"
    db_key = name_key(prefix, name_of.name)
    if rows.lacks(kind.shape, db_key):
        problem = f"it leads to {quoted(name_of.name)}, who does not exist"
        yield finding(kind.unmatched, place, problem)
        return
    member = rows.get(kind.shape, db_key)
    if member is not None and member.number != name_of.number:
        problem = f"it leads to {quoted(name_of.name)}, whose number is {member.number}"
        yield finding(kind.unmatched, place, problem)
