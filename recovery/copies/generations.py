"""The generations that the head of a copy names: beginning one, ending the others, removing them.

A generation that is followed by another one ends with a piece in place of its next one, so that
a store that still writes to it finds out. That piece stays when everything else of the generation
is removed: a store that slept for days must find it, too. So that it need not stay for ever, a
shipper acknowledges nothing before it has read the head again, if that was some time ago.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Container
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

from streamkeep.engine.system import failpoints
from streamkeep.format.copies import piece
from streamkeep.format.copies.head import Generation, Head
from streamkeep.format.copies.piece import Piece, PieceName
from streamkeep.format.core.errors import CorruptionError, UnreachableError
from streamkeep.recovery.copies.target import Refused, Target
from streamkeep.recovery.copies.writer import Again

_TRUSTED_S: Final = 600  # for which the head of a bucket is not read again
_KEEP_MS: Final = 7 * 86_400_000  # of a new copy
_ENDS: Final = 1000  # that stay; so many bases are not made in that time


class End(NamedTuple):
    """Where a generation ends.

    Attributes:
        commit, chain: its last commit, and the checksum of the record.
        piece_checksum, last_ms: of its last piece; 0 and the time of the base without one.
        problem: what is wrong with the last piece; its first commit is all that is known then.
    """

    commit: int
    chain: int
    piece_checksum: int
    last_ms: int
    problem: str = ""


class Generations:
    """The generations of one copy.

    Attributes:
        named: those that the head named when it was read; the last one goes on.
        trusted_s: for so long, the head is not read again.
    """

    def __init__(self, target: Target, store: UUID, keep_ms: int | None) -> None:
        self.target = target
        self.named: tuple[Generation, ...] = ()
        self._store = store
        self._keep_ms = keep_ms
        self._tag: str | None = None
        self._read_s = 0.0
        self._bare: set[str] = set()  # of which only the end is left
        # In a folder that costs nothing.
        self.trusted_s = 0 if target.uri.startswith("file:") else _TRUSTED_S

    @property
    def keep_ms(self) -> int:
        """For how long the copy can go back; as the head says, unless the caller does.

        A call without it, such as a last `ship --once`, must not remove what others keep.
        """
        if self._keep_ms is not None:
            return self._keep_ms
        return self.named[-1].keep_ms if self.named else _KEEP_MS

    def next_name(self) -> str:
        """Return a name for a new generation, above all others.

        Also above what killed shippers have left, which `remove` then knows to be older.
        """
        left = filter(piece.is_generation_name, self.target.objects.folders())
        names = *(one.name for one in self.named), *left
        number = max(map(piece.generation_number, names), default=0) + 1
        return f"{number:08x}-{secrets.token_hex(4)}"

    def read(self) -> bool:
        """Read the head; return whether there is one.

        Raises:
            Refused: it is that of another store.
        """
        began = time.clock_gettime(time.CLOCK_BOOTTIME)  # which goes on while the machine sleeps
        found = self.target.head()
        head, self._tag = found or (None, None)
        if head is not None and head.store != self._store:
            raise Refused(
                f"{self.target.uri}: the copy of another store ({head.store}); next: name another "
                "target"
            )
        self.named = head.generations if head else ()
        self._read_s = began
        return head is not None

    def check(self, name: str) -> None:
        """Check that a generation still goes on, so that what it was given can be restored.

        Raises:
            Again: another one has begun.
            UnreachableError: the copy is gone.
        """
        self.target.check_there()
        if time.clock_gettime(time.CLOCK_BOOTTIME) - self._read_s < self.trusted_s:
            return
        if not self.read() or self.named[-1].name != name:
            raise Again(f"{self.target.uri}: the copy does not go on with {name}")

    def begin(self, generation: Generation) -> None:
        """Have the head name a new generation, which goes on from now on; and end the one before.

        Raises:
            Again: another process has changed the head; or the one before is not ended yet, which
                the next start does.
        """
        if not self.target.set_head(Head(self._store, (*self.named, generation)), self._tag):
            raise Again(self.target.uri)
        failpoints.hit("ship:head")
        try:
            self.read()
            self.end_before(generation)
        except UnreachableError as error:
            raise Again(f"{error}") from error
        failpoints.hit("ship:ended")

    def end(self) -> End:
        """Return where the newest generation ends now."""
        newest = self.named[-1]
        for name in reversed(self.target.names(newest.name, 0)):
            try:
                last, _, checksum = self.target.piece(name)
            except CorruptionError as error:
                return End(name.first, 0, 0, newest.begun_ms, f"{error}")
            if last.kind != piece.END:
                return End(last.last_commit, last.chain_after, checksum, last.last_ms)
        return End(newest.base_commit, newest.base_chain, 0, newest.begun_ms)

    def end_before(self, successor: Generation) -> None:
        """End the generation before the newest: whoever still writes there finds out."""
        for ended in self.named[-2:-1]:
            first = self._next_commit(ended)
            if first is None:
                continue
            end = Piece(
                piece.END,
                self._store.bytes,
                successor.epoch,
                first,
                first - 1,
                successor.begun_ms,
                0,
                0,
            )
            data = piece.encode_end(end, successor.name, successor.owner)
            if not self.target.create(str(PieceName(ended.name, 0, first)), data):
                raise Again(self.target.uri)  # it was written to in this moment

    def _next_commit(self, generation: Generation) -> int | None:
        """Return the next commit of a generation; None if it has ended, or cannot be read."""
        names = self.target.names(generation.name, 0)
        if not names:
            return generation.base_commit + 1
        try:
            last = self.target.header(names[-1])
        except CorruptionError:
            return None
        return None if last.kind == piece.END else last.last_commit + 1

    def remove(self, now_ms: int, outdated: Container[str]) -> None:
        """Remove generations that nobody may want to go back to, and what was never named.

        That is, those after which another one began before `keep_ms`, which the head names for the
        next shipper; and those whose names are `outdated`.
        """
        keep_ms = self.keep_ms
        kept = [
            one
            for one, following in pairwise(self.named)
            if one.name not in outdated and following.begun_ms > now_ms - keep_ms
        ]
        kept.append(self.named[-1]._replace(keep_ms=keep_ms))
        if tuple(kept) != self.named:
            head = Head(self._store, tuple(kept))
            if not self.target.set_head(head, self._tag) or not self.read():
                raise Again(self.target.uri)
            failpoints.hit("ship:dropped")
        self._remove_unnamed()

    def _remove_unnamed(self) -> None:
        """Remove what is left of generations that the head does not name, and their segments."""
        named = {one.name for one in self.named}
        newest = self.named[-1].name
        self.target.objects.sweep()
        unnamed = [
            name
            # A later one may be that of a process which is still at its base.
            for name in self.target.objects.folders()
            if piece.is_generation_name(name) and name not in named and name < newest
        ]
        for name in unnamed:
            is_old = piece.generation_number(name) + _ENDS < piece.generation_number(newest)
            if is_old or name not in self._bare:
                self.target.remove(name, with_end=is_old)
        if not self._bare.issuperset(unnamed):
            self.target.drop_segments()
        self._bare.update(unnamed)
