"""Pieces: the objects of a copy, each with some commits of a store, or with rows of one commit.

    GENERATION/0/<first>.skp                   level 0: the records of commits, as in the journal
    GENERATION/1/<first>-<last>-<part>.skp     level 1: the rows that these commits changed, each
                                               once, as they are after the last of them
    GENERATION/1/<first>-<last>-<part>-end.skp the last part of those

A number of a commit has 20 digits, so names in order are commits in order; a part has 6. The rows
of level 1 whose first commit is 0 are all rows of the store, and are called the *base*.

A piece is a header, its body in one frame of zstd, and a checksum of both. The body of level 0 has
records; where they go on in another file of the journal, the header of that file comes first. So
each record can be checked as in the journal: its checksum is seeded with that of the record before.
The checksum of a piece of level 0 is the `before` of the next one. So from the base on, nothing can
be missing, changed or put in, which a reader finds without restoring anything. The body of level 1
is that of a record with one PUT or DELETE for each row, in the order of tables and keys.

A generation ends with a piece of level 0 whose kind is END. It takes the name of the piece that
would follow, and its body is JSON that says which generation follows, and who began that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import zstandard
from xxhash import xxh3_64_intdigest

from streamkeep.format.core.errors import ChecksumError, CorruptionError, FormatVersionError
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.journal.journal import (
    FILE_HEADER,
    RECORD_HEADER,
    FileHeader,
    decode_file_header,
    first_chain,
    read_record,
)
from streamkeep.format.journal.journal import MAGIC as FILE_MAGIC

MAGIC: Final = b"SKP"
FORMAT: Final = 1
RECORDS: Final = 0
ROWS: Final = 1
END: Final = 2
_KINDS: Final = ("records", "rows", "end")
SUFFIX: Final = ".skp"
_MOST_BODY: Final = 1 << 33  # a record may have 4 GiB
_GENERATION: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{8}", re.ASCII)
_NAME: Final = re.compile(
    rf"({_GENERATION.pattern})/(?:0/(\d{{20}})|1/(\d{{20}})-(\d{{20}})-(\d{{6}})(-end)?)\.skp",
    re.ASCII,
)

PIECE: Final = Layout(
    "piece of a copy",
    (
        Field("magic", "3s", '`"SKP"`'),
        Field("format", "B", "1"),
        Field("kind", "B", "0: records, 1: rows, 2: the end of a generation"),
        Field("store_uuid", "16s", "the store that was copied"),
        Field("epoch", "I", "epoch of the last commit"),
        Field("first_commit", "Q", "the first commit; 0 for a base"),
        Field("last_commit", "Q", "the last commit"),
        Field("last_ms", "Q", "Unix time at which the last commit had been made"),
        Field("chain_before", "Q", "checksum of the record before the first"),
        Field("chain_after", "Q", "checksum of the last record"),
        Field("before", "Q", "checksum of the piece before; 0 for the first one after a base"),
        Field("rows", "Q", "number of rows, of the parts before, too; or of commits"),
        Field("size", "Q", "bytes of the body"),
    ),
)
HEADER_SIZE: Final = PIECE.size
_TRAILER: Final = 8  # XXH3-64 of all bytes before


class Piece(NamedTuple):
    """The header of a piece; see `PIECE`."""

    kind: int
    store_uuid: bytes
    epoch: int
    first_commit: int
    last_commit: int
    last_ms: int
    chain_before: int
    chain_after: int
    before: int = 0
    rows: int = 0

    def encode(self, body: bytes) -> bytes:
        """Return the whole object."""
        header = PIECE.struct.pack(MAGIC, FORMAT, *self, len(body))
        data = header + zstandard.ZstdCompressor(level=3).compress(body)
        return data + xxh3_64_intdigest(data).to_bytes(_TRAILER, "big")


class PieceName(NamedTuple):
    """What the name of a piece says.

    Attributes:
        last, part, is_end: of level 1; 0 and False for level 0, whose last commit the header has.
    """

    generation: str
    level: int
    first: int
    last: int = 0
    part: int = 0
    is_end: bool = False

    def __str__(self) -> str:
        if self.level == 0:
            return f"{self.generation}/0/{self.first:020d}{SUFFIX}"
        end = "-end" if self.is_end else ""
        return (
            f"{self.generation}/1/{self.first:020d}-{self.last:020d}-{self.part:06d}{end}{SUFFIX}"
        )


def is_generation_name(name: str) -> bool:
    """Return whether a name is that of a generation: its number, and a random one."""
    return _GENERATION.fullmatch(name) is not None


def generation_number(name: str) -> int:
    """Return the number in the name of a generation."""
    return int(name.partition("-")[0], 16)


def parse_name(name: str) -> PieceName | None:
    """Return what a name says; None if it is not that of a piece."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    generation, level_0, first, last, part, end = found.groups()
    if level_0 is not None:
        return PieceName(generation, 0, int(level_0))
    return PieceName(generation, 1, int(first), int(last), int(part), end is not None)


def decode_header(data: bytes, where: str) -> Piece:
    """Return the header of a piece, unchecked but for its form; see `decode_piece`.

    Raises:
        CorruptionError: it is something else.
        FormatVersionError: a newer version of Streamkeep wrote it.
    """
    if len(data) < HEADER_SIZE or data[:3] != MAGIC:
        raise CorruptionError(where, f"{len(data)} bytes that do not begin a piece of a copy")
    fields = PIECE.struct.unpack_from(data)
    if fields[1] > FORMAT:
        raise FormatVersionError(
            f"{where}: format {fields[1]}, but this version of Streamkeep reads format {FORMAT}; "
            "next: upgrade Streamkeep"
        )
    if fields[1] != FORMAT or fields[2] >= len(_KINDS) or fields[-1] > _MOST_BODY:
        raise CorruptionError(where, "the header is damaged")
    return Piece(*fields[2:-1])


def checksum_of(data: bytes) -> int:
    return int.from_bytes(data[-_TRAILER:], "big")


def decode_piece(data: bytes, where: str) -> tuple[Piece, bytes]:
    """Return the header and the body of a piece.

    Raises:
        CorruptionError: it is damaged, or something else.
        FormatVersionError: a newer version of Streamkeep wrote it; its checksum is right.
    """
    # First: a flipped bit in the format's number is damage, which other pieces make up for.
    if data[:3] == MAGIC and xxh3_64_intdigest(data[:-_TRAILER]) != checksum_of(data):
        raise ChecksumError(where, f"the checksum of its {len(data):,} bytes does not match")
    piece = decode_header(data, where)
    size = PIECE.struct.unpack_from(data)[-1]
    try:
        stated = zstandard.frame_content_size(data[HEADER_SIZE:])
        if stated != size:
            raise CorruptionError(where, f"the frame states {stated} bytes, the header {size}")
        body = zstandard.ZstdDecompressor().decompress(data[HEADER_SIZE:-_TRAILER])
    except zstandard.ZstdError as error:
        raise CorruptionError(where, f"zstd cannot decompress it: {error}") from None
    return piece, body


class Commit(NamedTuple):
    """One commit of a piece of level 0.

    Attributes:
        body: that of its record.
        chain: the checksum of the record.
    """

    commit_number: int
    body: bytes
    chain: int


def read_commits(piece: Piece, body: bytes, where: str) -> Iterator[Commit]:
    """Yield the commits of a piece of level 0; each is checked before it is yielded.

    Raises:
        CorruptionError: a record does not follow the one before, or the header says otherwise.
    """
    at, chain, last = 0, piece.chain_before, piece.first_commit - 1
    while at < len(body):
        if body[at : at + len(FILE_MAGIC)] == FILE_MAGIC:
            file = decode_file_header(body[at : at + FILE_HEADER.size])
            if file is None or not _follows(file, piece, last):
                raise CorruptionError(where, "the header of a journal file does not fit", offset=at)
            chain = first_chain(file.encode())
            at += FILE_HEADER.size
        record = read_record(body, at, chain) if at + RECORD_HEADER.size <= len(body) else None
        if record is None or record.commit_number != last + 1:
            raise CorruptionError(where, f"the record of commit {last + 1} is damaged", offset=at)
        at, chain, last = record.end, record.chain, record.commit_number
        yield Commit(last, record.body, chain)
    if (last, chain) != (piece.last_commit, piece.chain_after):
        raise CorruptionError(where, f"it ends at commit {last}, not {piece.last_commit}")


def _follows(file: FileHeader, piece: Piece, last: int) -> bool:
    """Return whether a journal file may go on after a commit."""
    return (
        file.store_uuid == piece.store_uuid
        and file.first_commit == last + 1
        and file.epoch <= piece.epoch
    )


def encode_end(piece: Piece, successor: str, owner: str) -> bytes:
    body = json.dumps({"successor": successor, "owner": owner}).encode()
    return piece._replace(kind=END).encode(body)


def decode_end(body: bytes, where: str) -> tuple[str, str]:
    """Return the generation that follows, and who began it; raise CorruptionError."""
    try:
        members: dict[str, Any] = json.loads(body)
        return str(members["successor"]), str(members["owner"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptionError(where, f"the end of a generation is damaged: {error}") from None
