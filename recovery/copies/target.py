"""The objects of a copy under a URI: reading, and the writes that no other process may undo.

Pieces and segments are written under names that do not exist; only the head is replaced, and only
if it is still the one that was read. So two processes that write to one target cannot lose what the
other one has written.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.system.files import place_of
from streamkeep.engine.system.modes import Modes
from streamkeep.format.copies import head as head_format
from streamkeep.format.copies import piece as piece_format
from streamkeep.format.copies.head import Generation, Head, Verified
from streamkeep.format.copies.piece import Commit, Piece, PieceName
from streamkeep.format.core.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    StoreError,
    UnreachableError,
)
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.segment import Segment

Place = str | os.PathLike[str]  # a URI, or the path of a folder
FoundPiece = tuple[Piece, Iterator[Commit]]

_HEAD_POLLS: Final = 10  # polls without a new piece before the head is read


class Refused(StoreError):
    """A store must not be shipped there; trying again does not help."""


class Rows(NamedTuple):
    """The rows that some commits changed, as the names in a target say it; or a base.

    Attributes:
        parts: the names of its pieces, in order; the last one is the end.
    """

    first: int
    last: int
    parts: tuple[PieceName, ...]


class Target:
    """A copy under a URI, which need not exist yet."""

    def __init__(self, place: Place, modes: Modes | None = None) -> None:
        """Open a copy.

        Args:
            modes: of the store that is copied, to write there; see `open_objects`.
        """
        self.objects = open_objects(place_of(place, "target"), modes)
        self.uri = self.objects.uri
        self._sign = ""  # an object that was there

    def where(self, name: object) -> str:
        """Return the name of an object in errors."""
        return f"{self.uri}/{name}"

    def check_writes(self) -> None:
        """Check that the target refuses writes on whose refusal everything here depends.

        Raises:
            Refused: it does not, so two stores that write to it could mix their commits.
        """
        create = self.objects.create
        if (
            create(head_format.PROBE, b"") and create(head_format.PROBE, b"")
        ) or self.objects.replace(head_format.PROBE, b"", "0"):
            raise Refused(
                f"{self.uri}: it replaces an object in spite of If-None-Match or If-Match, so "
                "that two stores could mix their commits there; next: name a target that heeds "
                "them, such as a folder or S3"
            )
        self._sign = head_format.PROBE

    def has_probe(self) -> bool:
        """Return whether a shipper has been here: it begins with `check_writes`."""
        return self.objects.size(head_format.PROBE) is not None

    # --- the head ---------------------------------------------------------------------------

    def head(self) -> tuple[Head, str] | None:
        """Return the head and its tag; None if there is none."""
        try:
            data, tag = self.objects.get_tagged(head_format.HEAD)
        except FileNotFoundError:
            return None
        self._sign = self._sign or head_format.HEAD  # which a mount point may have got in a race
        return head_format.decode_head(data, self.where(head_format.HEAD)), tag

    def known_head(self) -> Head:
        """Return the head.

        Raises:
            NotAStoreError: there is none.
        """
        found = self.head()
        if found is None:
            raise NotAStoreError(
                f"{self.uri}: there is no copy of a store; next: correct the name, or make one "
                "with `streamkeep ship`"
            )
        return found[0]

    def set_head(self, head: Head, tag: str | None) -> bool:
        """Write the head; return False if it is no longer the one with the tag."""
        data = head.encode()
        self.check_there()
        if tag is None:
            return self.create(head_format.HEAD, data)
        with contextlib.suppress(FileNotFoundError):  # the copy is gone
            done = self.objects.replace(head_format.HEAD, data, tag)
            return done or self._is(head_format.HEAD, data)
        return False

    # --- pieces -----------------------------------------------------------------------------

    def gone(self) -> UnreachableError:
        """Return the error for a copy that was there."""
        return UnreachableError(
            f"{self.uri}: the copy that was there is gone; next: mount its disk, or --take-over "
            "makes a new one"
        )

    def check_there(self) -> None:
        """Raise UnreachableError if the copy is gone: nothing is written to its mount point."""
        if self._sign and self.uri.startswith("file:") and self.objects.size(self._sign) is None:
            raise self.gone()

    def create(self, name: str, data: bytes) -> bool:
        """Write an object that does not exist; return False if there is another one."""
        self.check_there()
        return self.objects.create(name, data) or self._is(name, data)

    def _is(self, name: str, data: bytes) -> bool:
        """Return whether an object has these bytes: the answer to its request may be lost."""
        with contextlib.suppress(FileNotFoundError):
            return self.objects.get(name) == data
        return False

    def names(self, generation: str, level: int) -> list[PieceName]:
        """Return the names of the pieces of a level, in the order of their commits."""
        found = map(piece_format.parse_name, self.objects.names(f"{generation}/{level}"))
        return sorted(one for one in found if one is not None)

    def rows(self, generation: str) -> list[Rows]:
        """Return the rows of level 1 that are whole, the base first."""
        whole = []
        parts: list[PieceName] = []
        for name in self.names(generation, 1):
            if parts and (name.first, name.last) != (parts[0].first, parts[0].last):
                parts = []
            parts.append(name)
            if name.is_end and [one.part for one in parts] == list(range(len(parts))):
                whole.append(Rows(name.first, name.last, tuple(parts)))
        return whole

    def base(self, generation: Generation, found: list[Rows]) -> Rows:
        """Return the base of a generation from its rows; raise CorruptionError without one."""
        for rows in found:
            if (rows.first, rows.last) == (0, generation.base_commit):
                return rows
        raise CorruptionError(self.where(generation.name), "the base of the copy is not whole")

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return a part of an object; raise CorruptionError if it is missing."""
        try:
            return self.objects.read(name, offset, size)
        except FileNotFoundError:
            self.check_there()
            raise CorruptionError(self.where(name), "the object is missing") from None

    def header(self, name: PieceName) -> Piece:
        """Return the header of a piece, of which only a read of the whole proves anything."""
        data = self.read(str(name), 0, piece_format.HEADER_SIZE)
        try:
            return piece_format.decode_header(data, self.where(name))
        except FormatVersionError:
            return self.piece(name)[0]  # a newer format, or damage

    def piece(self, name: PieceName) -> tuple[Piece, bytes, int]:
        """Return a piece, its body and its checksum.

        Raises:
            CorruptionError: it is missing, damaged, or another one.
        """
        where = self.where(name)
        try:
            data = self.objects.get(str(name))
        except FileNotFoundError:
            self.check_there()
            raise CorruptionError(where, "the piece is missing") from None
        piece, body = piece_format.decode_piece(data, where)
        if piece.first_commit != name.first or (name.level and piece.last_commit != name.last):
            found = f"commits {piece.first_commit} to {piece.last_commit}"
            raise CorruptionError(where, f"it has {found}, which its name does not say")
        return piece, body, piece_format.checksum_of(data)

    def verified(self, generation: str) -> Verified:
        """Return what the last verification of a generation has noted."""
        name = f"{generation}/{head_format.VERIFIED}"
        try:
            return head_format.decode_verified(self.objects.get(name), self.where(name))
        except (FileNotFoundError, CorruptionError):  # the next verification says more
            return Verified(0, 0, 0, 0, 0)

    # --- segments ---------------------------------------------------------------------------

    def segment(self, name: str) -> Segment:
        """Open a segment; raise CorruptionError if it is missing or damaged."""
        where = self.where(name)
        size = self.objects.size(name)
        if size is None:
            raise CorruptionError(where, "the segment is missing")
        return Segment.open(partial(self.read, name), size, where)

    def needed_segments(self, generation: str) -> set[str]:
        names = self.objects.names(f"{generation}/{head_format.SEGMENTS}")
        return {name.removeprefix(f"{generation}/") for name in names}

    def remove(self, generation: str, *, with_end: bool) -> None:
        """Remove what is left of a generation that the head does not name."""
        end = ""
        for last in self.names(generation, 0)[-1:]:
            with contextlib.suppress(CorruptionError):
                if not with_end and self.header(last).kind == piece_format.END:
                    end = str(last)
        for name in self.objects.names(generation):
            if name != end:
                self.objects.remove(name)

    def drop_segments(self) -> None:
        """Remove the segments that no generation needs, not even one whose base is being made."""
        folders = [*filter(piece_format.is_generation_name, self.objects.folders())]
        needed = {name for one in folders for name in self.needed_segments(one)}
        for name in self.objects.names(head_format.SEGMENTS):
            # A list may be older than what was written since; a request for one object is not.
            marks = (f"{one}/{name}" for one in folders)
            if name not in needed and all(self.objects.size(one) is None for one in marks):
                self.objects.remove(name)


def is_any_removed(before: Head, now: Head) -> bool:
    """Return whether generations were removed meanwhile: what a reader misses then is no damage."""
    return not {one.name for one in before.generations} <= {one.name for one in now.generations}


def segment_name(record: SegmentRecord) -> str:
    """Return the name of a segment in a copy; one that was rewritten has another one."""
    return f"{head_format.SEGMENTS}/{record.path}.{record.checksum:016x}"


def chain_of(found: list[Rows], base_commit: int, end: int) -> list[Rows]:
    """Return rows that follow each other after the base of a generation, up to a commit."""
    chain: list[Rows] = []
    commit = base_commit
    while True:
        fits = [rows for rows in found if rows.first == commit + 1 and rows.last <= end]
        if not fits:
            return chain
        chain.append(max(fits, key=lambda rows: rows.last))
        commit = chain[-1].last


# --- following a copy ---------------------------------------------------------------------------


class OtherHistoryError(CorruptionError):
    """A piece has another commit in the place of one that was applied."""


def commits_after(piece: Piece, body: bytes, where: str, last: int, chain: int) -> Iterator[Commit]:
    """Yield the commits of a piece after one that was applied; each follows the one before it.

    Args:
        last, chain: the commit that was applied, and the checksum of its record.

    Raises:
        CorruptionError: it is damaged, of another history, or begins later.
    """
    if piece.first_commit > last + 1:
        raise CorruptionError(where, f"it begins after commit {last + 1}, which is missing")
    before = piece.chain_before
    for commit in piece_format.read_commits(piece, body, where):
        if commit.commit_number > last:
            if before != chain:
                raise OtherHistoryError(where, f"it has another commit {last} than was applied")
            yield commit
            chain = commit.chain
        before = commit.chain


class PieceFollower:
    """Follows a copy; a base of what applies its pieces.

    Attributes:
        generation: the one that goes on.
        place: the newest commit that was applied, and the checksum of its record.
    """

    def __init__(self, target: Target, generation: str, place: tuple[int, int]) -> None:
        self.target = target
        self.generation = generation
        self.place = place
        self._located = False  # that the next piece begins after the newest commit
        self._idle = 0  # polls since the last piece

    def take_up(self, generation: Generation, *, continues: bool) -> None:
        """Go on with another generation.

        Args:
            continues: it goes on after that commit; otherwise it has another one, or lacks some.
        """
        raise NotImplementedError

    def find_next(self, *, once: bool, damaged: bool = False) -> FoundPiece | None:
        """Return the piece with the next commit, and its commits from there on; None if none yet.

        Args:
            once: nobody asks again, so look everywhere.
            damaged: the generation is; go on with another one, if that has begun.
        """
        if damaged:
            self._look_at_head(damaged=True)
        found = self._next()
        if found is not None:
            self._idle = 0
            return found
        self._idle += 1
        if self._idle % _HEAD_POLLS == 0:
            self._located = False  # a target that has lost pieces gets others of other lengths
        # A generation that is removed gets no end.
        if (once or self._idle % _HEAD_POLLS == 0) and self._look_at_head():
            return self.find_next(once=once)
        return None

    def _next(self) -> FoundPiece | None:
        wanted = self.place[0] + 1
        name = PieceName(self.generation, 0, wanted)
        if self.target.objects.size(str(name)) is None:
            if not self._located:
                names = self.target.names(self.generation, 0)
                at = bisect_right(names, wanted, key=lambda one: one.first)
                if at and self.target.header(names[at - 1]).last_commit >= wanted:
                    return self._found(names[at - 1], *self.target.piece(names[at - 1])[:2])
                self._located = True
            return None
        piece, body, _ = self.target.piece(name)
        if piece.kind == piece_format.END:
            successor, _ = piece_format.decode_end(body, self.target.where(name))
            self._follow(successor)
            return self._next()
        return self._found(name, piece, body)

    def _found(self, name: PieceName, piece: Piece, body: bytes) -> FoundPiece:
        return piece, commits_after(piece, body, self.target.where(name), *self.place)

    def _look_at_head(self, *, damaged: bool = False) -> bool:
        """Go on with another generation if this one is over, or gone; return whether.

        It may have no end that can be found: its shipper was killed before it wrote that, or the
        target has lost pieces that were applied.

        Args:
            damaged: whatever is left in it.
        """
        head = self.target.known_head()
        names = [one.name for one in head.generations]
        before, successor = self.generation, names[-1]
        if before == successor:
            return False
        if before in names and not damaged:
            self._located = False
            if self._next() is not None or self.generation != before:
                return True  # it was written before the head was
            successor = names[names.index(before) + 1]
        self._follow(successor)
        return True

    def _follow(self, name: str) -> None:
        head = self.target.known_head()
        found = [one for one in head.generations if one.name == name]
        generation = found[0] if found else head.generations[-1]
        self._located = False
        self.take_up(generation, continues=self._continues(generation))

    def _continues(self, generation: Generation) -> bool:
        """Return whether a generation has the newest commit, with the same checksum."""
        commit, chain = self.place
        if commit <= generation.base_commit:
            return (commit, chain) == (generation.base_commit, generation.base_chain)
        names = self.target.names(generation.name, 0)
        at = bisect_right(names, commit, key=lambda one: one.first)
        if not at:
            return False
        piece, body, _ = self.target.piece(names[at - 1])
        if piece.kind == piece_format.END:
            return False
        commits = piece_format.read_commits(piece, body, self.target.where(names[at - 1]))
        return any((one.commit_number, one.chain) == (commit, chain) for one in commits)
