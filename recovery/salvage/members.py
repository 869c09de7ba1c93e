"""Names and numbers: what is readable of the consumers of a group, or the producers of a stream.

A member has a row under its name, with its number and its counters, and a row under its number,
with its name. Either is enough to find the other.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final, Generic, NamedTuple, TypeVar

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import is_lease_key, is_name_key, name_key
from streamkeep.recovery.salvage.new_store import BulkStore

_NUMBER_AT: Final = 9  # in the key of a row under a number

T = TypeVar("T")


class Members(NamedTuple, Generic[T]):
    """The readable members, by number.

    Attributes:
        known: name and record of those whose row under their name can be read.
        names: the names in the rows under numbers.
        dropped: names whose number is in use by another name, or 0.
    """

    known: dict[int, tuple[bytes, T]]
    names: dict[int, bytes]
    dropped: list[bytes]


def read_members(
    out: BulkStore, table: int, prefix: bytes, decode: Callable[[bytes], tuple[int, bytes, T]]
) -> Members[T]:
    """Return the members whose keys begin with `prefix`.

    Args:
        decode: returns number, name and record from the body of a row; raises CorruptionError.
    """
    found: Members[T] = Members({}, {}, [])
    taken: set[bytes] = set()
    for db_key, value in out.rows(table, prefix):
        body = open_row(table, db_key, value, "member")
        if not is_name_key(db_key):
            if not is_lease_key(db_key):
                found.names[int.from_bytes(db_key[_NUMBER_AT:], "big")] = body
            continue
        try:
            number, name, record = decode(body)
        except CorruptionError:
            continue
        own_key = name_key(prefix, name)
        if name in taken or (own_key != db_key and out.get(table, own_key) is not None):
            continue  # another row of the name counts
        if number == 0 or number in found.known:
            found.dropped.append(name)
            continue
        taken.add(name)
        found.known[number] = name, record
    return found


def new_name(number: int, taken: Container[bytes]) -> bytes:
    """Return a name for a member whose name is lost."""
    name = b"lost+found-%d" % number
    while name in taken:
        name += b"'"
    return name
