"""The pieces of a copy that follow a commit, one after the other, also across generations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from streamkeep.format.copies import piece as piece_format
from streamkeep.format.copies.head import Generation
from streamkeep.format.copies.piece import Commit, Piece, PieceName
from streamkeep.format.core.errors import CorruptionError
from streamkeep.recovery.copies.target import Target

_HEAD_POLLS: Final = 10  # polls without a new piece before the head is read

FoundPiece = tuple[Piece, Iterator[Commit]]


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
                self._located = True
                names = self.target.names(self.generation, 0)
                at = bisect_right(names, wanted, key=lambda one: one.first)
                if at and self.target.header(names[at - 1]).last_commit >= wanted:
                    return self._found(names[at - 1], *self.target.piece(names[at - 1])[:2])
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
        """Go on with another generation if this one is not there any more; return whether.

        Args:
            damaged: also if it is there, and another one has begun.
        """
        head = self.target.known_head()
        names = [one.name for one in head.generations]
        if self.generation in (names[-1:] if damaged else names):
            return False
        self._follow(head.generations[-1].name)
        return True

    def _follow(self, name: str) -> None:
        """Go on with another generation."""
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
