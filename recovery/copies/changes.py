"""The change feed of a copy: its commits, with what each has changed in streams.

A copy can be read from any commit that it can restore, also while its store is written elsewhere,
and also when that is gone. The rows as of that commit are restored into a folder of their own,
which is removed at the end: records are differences, see `engine.feed.effects`.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import lmdb

from streamkeep.engine.feed.effects import Commit, Rows, commit_position, parse_position
from streamkeep.engine.feed.feed import NOW
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.whole_store.copying import open_new, tables_of
from streamkeep.format.copies.head import Generation, Head
from streamkeep.format.copies.piece import Commit as Record
from streamkeep.format.copies.piece import PieceName
from streamkeep.format.core.durations import Duration, above_zero
from streamkeep.format.core.errors import ArgumentError, ChangesGoneError, CorruptionError
from streamkeep.recovery.copies.restore import Filling, plan_restore, until_read
from streamkeep.recovery.copies.target import PieceFollower, Place, Target
from streamkeep.recovery.copies.target import Rows as CopiedRows

_MOST_ROWS: Final = 100_000  # in memory, before they are written


def changes(
    target: Place,
    from_commit: int | str | bytes | None = None,
    *,
    follow: bool = False,
    every: Duration = "500ms",
    stop: Callable[[], bool] | None = None,
    scratch: str | Path | None = None,
) -> Iterator[Commit[bytes]]:
    """Iterate over the commits of a copy after one, as `Store.changes` does for a store.

    Numbers and positions are those of the store, so a reader may go on here that has read the store
    itself, and the other way round. The copy does not change. Commits come with the next piece: a
    second after they were made, or what `--every` of `streamkeep ship` says. They are on disk then,
    in the store and in the copy.

    Args:
        target: what `streamkeep ship` writes to: a folder, or the URI of a folder in a bucket.
        from_commit: the `number` or the `position` of the last commit that was read. A position
            also proves that the copy has that commit, and not another one with that number. "$":
            begin after the newest commit. None: after the oldest one.
        follow: wait for further commits at the end.
        every: how often to look for a new piece then; one request each time.
        stop: asked after each commit and before each look; True ends the iteration.
        scratch: folder for the rows of the store as of `from_commit`, which take as much room as in
            the store; None for that of temporary files.

    Raises:
        ChangesGoneError: the copy begins after the commit, ends before it, has another one in its
            place, or lacks commits after it. Its message names the commits.
        NotAStoreError: there is no copy.
        CorruptionError: the copy is damaged; the error names the object.
        UnreachableError: the target does not answer. Go on after the last commit that was read.
    """
    every_s = above_zero(every, "every") / 1000
    source = Target(target)
    feed = until_read(
        source,
        source.known_head(),
        lambda head, avoid: _CopyFeed(source, head, avoid, from_commit, scratch),
    )
    return feed.iterate(every_s if follow else 0, stop or (lambda: False))


class _CopyFeed(PieceFollower):
    """The commits of a copy, with all rows as of the newest one that was read."""

    def __init__(
        self,
        target: Target,
        head: Head,
        avoid: frozenset[CopiedRows],
        after: int | str | bytes | None,
        scratch: str | Path | None,
    ) -> None:
        # A generation begins before an earlier one if it is of a restore of an earlier commit.
        self._oldest = min(one.base_commit for one in head.generations)
        commit, chain = None, 0
        if after is None:
            commit = self._oldest
        elif after != NOW:
            commit, chain = parse_position(after)
        try:
            plan = plan_restore(target, head, commit, None, avoid)
        except ArgumentError as error:
            wanted = commit or 0
            raise ChangesGoneError(
                f"{str(error).partition('; next: ')[0]}, so it has no changes after commit {wanted}"
                "; next: begin with a full read",
                wanted,
                self._oldest,
            ) from None
        base = plan.generation
        super().__init__(target, base.name, (base.base_commit, base.base_chain))
        self._txn: lmdb.Transaction[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(
            prefix="streamkeep-changes-", dir=scratch, ignore_cleanup_errors=True
        )
        self._raw = open_new(Folder(Path(self._folder.name), outside=True))
        try:
            with translated():
                self._tables = tables_of(self._raw)
                self.place = Filling(target, plan).fill(self._raw, self._tables)
                self._rows: Rows[bytes] = Rows(self._get, bytes, decode=False)
                self._begin()
            if chain and chain != self.place[1]:
                raise ChangesGoneError(
                    f"{target.uri}: commit {plan.end} is another one than that which was read: the "
                    "store was restored, or lost commits in a power cut; next: begin with a full "
                    "read",
                    plan.end,
                    self._oldest,
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._txn is not None:
            self._txn.abort()
        self._raw.close()
        self._folder.cleanup()

    def iterate(self, every_s: float, ended: Callable[[], bool]) -> Iterator[Commit[bytes]]:
        """Yield commits, until there is none, or until `ended`.

        Args:
            every_s: how often to look for a piece where there is none; 0 to end then.
        """
        pause = threading.Event()
        try:
            while not ended():
                found = self.find_next(once=not every_s)
                if found is not None:
                    for commit in self.commits(found[1]):
                        yield commit
                        if ended():
                            return
                elif every_s:
                    pause.wait(every_s)
                else:
                    self.check_end()
                    return
        finally:
            self.close()

    def take_up(self, generation: Generation, *, continues: bool) -> None:
        commit = self.place[0]
        if not continues:
            raise ChangesGoneError(
                f"{self.target.uri}: the copy has no changes after commit {commit}: it goes on "
                f"with another generation, from commit {generation.base_commit}; next: begin with "
                "a full read",
                commit,
                generation.base_commit,
            )
        self.generation = generation.name

    def check_end(self) -> None:
        """Raise CorruptionError if there are pieces after the one that would be next."""
        wanted = self.place[0] + 1
        names = self.target.names(self.generation, 0)
        if names and names[-1].first > wanted:
            missing = PieceName(self.generation, 0, wanted)
            raise CorruptionError(self.target.where(missing), "the piece is missing")

    def commits(self, found: Iterator[Record]) -> Iterator[Commit[bytes]]:
        """Yield the commits of a piece that follow."""
        with translated():
            for commit in found:
                self._rows.apply(commit.body)
                self.place = commit.commit_number, commit.chain
                yield Commit(
                    commit.commit_number, commit_position(*self.place), tuple(self._rows.effects())
                )
                if len(self._rows.newer) >= _MOST_ROWS:
                    self._write()
            self._write()

    # --- rows -------------------------------------------------------------------------------

    def _get(self, table: int, db_key: bytes) -> bytes | None:
        assert self._txn is not None
        return self._txn.get(db_key, None, self._tables[table])

    def _begin(self) -> None:
        self._txn = self._raw.begin()
        self._rows.begin(self._get)

    def _write(self) -> None:
        if self._txn is not None:
            self._txn.abort()  # without LMDB's lock file, the next one could use its pages
        with self._raw.begin(write=True) as txn:
            for (table, db_key), value in self._rows.newer.items():
                if value is None:
                    txn.delete(db_key, db=self._tables[table])
                else:
                    txn.put(db_key, value, db=self._tables[table])
        self._begin()
