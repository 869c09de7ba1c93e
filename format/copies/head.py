"""The head of a copy: the one object that is replaced. It says which generations there are.

    head.json                        this object
    probe                            an empty object, by which a target shows what it refuses
    GENERATION/...                   the pieces of a generation; see `piece`
    GENERATION/segments/<name>       empty objects: the segments that the generation needs
    segments/<name>                  segments of the archive; the name ends with their checksum
    GENERATION/verified.json         how far the generation was verified, and what was damaged

A *generation* is a base and all commits after it. It is named here as soon as its base is whole.
A new one begins when the journal lacks what was not copied yet, when this store is not the one
that was copied last, after an erasure, after damage, when the clock was set back, and when a base
has become old. An old one stays as long as somebody may want to go back to its time: it is no
longer named here before its objects are removed. The piece that ends it stays: see
`recovery.copies.generations`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from streamkeep.format.copies.piece import is_generation_name
from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import CorruptionError, FormatVersionError

VERSION: Final = 1
HEAD: Final = "head.json"
PROBE: Final = "probe"
VERIFIED: Final = "verified.json"
SEGMENTS: Final = "segments"


class Generation(NamedTuple):
    """One generation.

    Attributes:
        name: its folder; names in order are generations in order.
        epoch: of the store when its base was made.
        base_commit: the commit of its base.
        base_chain: the checksum of the record of that commit.
        base_bytes: the size of the base.
        begun_ms: Unix time of the base.
        owner: the host and the process that began it.
        keep_ms: for how long the store wants to be able to go back.
        erasures: how many erasures its base knows; they are never forgotten.
    """

    name: str
    epoch: int
    base_commit: int
    base_chain: int
    base_bytes: int
    begun_ms: int
    owner: str
    keep_ms: int
    erasures: int = 0


class Head(NamedTuple):
    """The object `head.json`; the generation that goes on is the last one."""

    store: UUID
    generations: tuple[Generation, ...]

    def encode(self) -> bytes:
        return _encode(
            {
                "format": VERSION,
                "store": str(self.store),
                "generations": [one._asdict() for one in self.generations],
            }
        )


def decode_head(data: bytes, where: str) -> Head:
    """Parse a head.

    Raises:
        CorruptionError: it is damaged, or something else.
        FormatVersionError: a newer version of Streamkeep wrote it.
    """
    try:
        members = json.loads(data)
        version = members["format"]  # first: a newer one may have no such checksum
        if type(version) is int and version > VERSION:
            raise FormatVersionError(
                f"{where}: format {version}, but this version of Streamkeep reads format "
                f"{VERSION}; next: upgrade Streamkeep"
            )
        if version != VERSION:
            raise ValueError(f"format {version!r}")
        members = _checked(members)
        generations = tuple(_generation(one) for one in members["generations"])
        if not generations:
            raise ValueError("no generation")
        return Head(UUID(members["store"]), generations)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = (
            f"not the head of a copy: {error}; next: put back an earlier version of this object; "
            "or move the target away, and `streamkeep ship` with --take-over makes another copy"
        )
        raise CorruptionError(where, problem) from None


def _generation(members: Mapping[str, Any]) -> Generation:
    one = Generation(**members)
    for name, value in one._asdict().items():
        if name == "name":
            fits = isinstance(value, str) and is_generation_name(value)
        elif name == "owner":
            fits = isinstance(value, str)
        else:
            fits = type(value) is int and 0 <= value < 1 << 64
        if not fits:
            raise ValueError(f"{name} is {value!r}")
    return one


class Verified(NamedTuple):
    """The object `verified.json`: up to which commit a generation was found sound, and when.

    Attributes:
        pieces: of level 0, up to that commit.
        piece_checksum: that of the last one; 0 for the base.
        segments: the names of the segments that were found sound.
        damaged: the names of the objects that were not: a shipper then begins another generation.
    """

    commit_number: int
    chain: int
    pieces: int
    piece_checksum: int
    time_ms: int
    segments: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return _encode(self._asdict())


def decode_verified(data: bytes, where: str) -> Verified:
    """Parse what the last verification has left; raise CorruptionError."""
    try:
        found = Verified(**_checked(json.loads(data)))
        numbers = found[:-2]
        if not all(type(one) is int for one in numbers):
            raise ValueError(f"{numbers}")
        names = (tuple(map(str, one)) for one in found[-2:])
        return Verified(*numbers, *names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(where, f"damaged: {error}") from None


def _encode(members: dict[str, Any]) -> bytes:
    """Return an object with a checksum of its members."""
    return (json.dumps({**members, "checksum": _checksum(members)}, indent=1) + "\n").encode()


def _checked(members: dict[str, Any]) -> dict[str, Any]:
    """Return the members of an object without their checksum; raise ValueError if it is wrong."""
    stated = members.pop("checksum")
    if stated != _checksum(members):
        raise ValueError("the checksum does not match")
    return members


def _checksum(members: dict[str, Any]) -> str:
    return digest64(json.dumps(members, sort_keys=True).encode()).hex()
