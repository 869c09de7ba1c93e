"""The log position: the last commit that LMDB holds, and where the journal goes on after it.

Every LMDB transaction that changes something writes this row. It is the only plain key of LMDB's
main database, beside the names of the tables: LMDB writes that page with every transaction anyway.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Field, Layout

POSITION_KEY: Final = b"log position"


class LogPosition(NamedTuple):
    """The place in the journal right after the record of a commit."""

    file_number: Annotated[int, "Q", "number of the journal file; 0: the next one is begun"]
    offset: Annotated[int, "Q", "where the next record begins in it"]
    chain: Annotated[int, "Q", "checksum of the record before, or of the header of the file"]
    commit_number: Annotated[int, "Q", "the last commit that `data.mdb` holds"]


POSITION: Final = Layout.of(
    "log position", LogPosition, after=(Field("checksum", "Q", "XXH3-64 of the fields above"),)
)
_CHECKED: Final = POSITION.size - 8
_pack: Final = POSITION.struct.pack


def encode_position(file_number: int, offset: int, chain: int, commit_number: int) -> bytes:
    checked = _pack(file_number, offset, chain, commit_number, 0)[:_CHECKED]
    return checked + xxh3_64_intdigest(checked).to_bytes(8, "big")


def decode_position(row: bytes) -> LogPosition:
    where = "the log position"
    fields = POSITION.unpack(row, where)
    if fields[-1] != xxh3_64_intdigest(row[:_CHECKED]):
        raise CorruptionError(where, "the checksum of the row does not match")
    return LogPosition(*fields[:-1])
