"""Verifying a copy: proof, without a restore, that it is a prefix of the commits of its store.

All bytes are read and compared with their checksums. Each record must follow the one before, from
the base on, across pieces and journal files, as the store wrote them. How far that was proved is
noted at the copy, so that the next verification begins there, if the pieces before are still there.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final, NamedTuple

from streamkeep.engine.remote.object_store import put_bytes
from streamkeep.engine.remote.remote_archive import check_checksums
from streamkeep.engine.system.progress import StepProgress, silent
from streamkeep.engine.tables.manifest import decode_row
from streamkeep.format.copies import head as head_format
from streamkeep.format.copies.head import VERIFIED, Generation, Verified, decode_verified
from streamkeep.format.copies.piece import END, Piece, PieceName, decode_end, read_commits
from streamkeep.format.core.errors import CorruptionError, UnreachableError
from streamkeep.format.core.keys import META, SEGMENTS, TABLES
from streamkeep.format.journal.journal import DELETE, ChangeReader
from streamkeep.format.segment.remote import META_REMOTE
from streamkeep.recovery.copies.target import Place, Rows, Target, segment_name

_OF_ARCHIVE: Final = (SEGMENTS, META)  # tables that say what it has, and where


class VerifyReport(NamedTuple):
    """The result of a verification.

    Attributes:
        problems: what is missing or damaged, each with the name of the object; empty if all is
            proved.
        first_commit, last_commit: the copy can restore any commit from the first to the last one.
        last_ms: Unix time at which the last one had been made.
        commits, pieces, rows, segments: what was read and found sound this time.
        known_commits: commits that an earlier verification had proved.
        noted: whether the target has the result: the next verification begins where this one ended,
            and a shipper replaces a generation that is damaged. Not if it cannot be written.
        damaged: whether the newest generation is.
    """

    target: str
    generation: str
    problems: tuple[CorruptionError, ...]
    first_commit: int
    last_commit: int
    last_ms: int
    commits: int
    pieces: int
    rows: int
    segments: int
    known_commits: int
    noted: bool
    damaged: bool


def verify_copy(
    target: Place, *, everything: bool = False, progress: StepProgress | None = None
) -> VerifyReport:
    """Verify every object of a copy that no earlier verification has proved.

    Args:
        everything: read all again.

    Raises:
        NotAStoreError: there is no copy.
        CorruptionError: the head of the copy is damaged.
        UnreachableError: the target does not answer.
    """
    source = Target(target)
    checks: list[_Check] = []
    while not checks:
        head = source.known_head()
        checks = []
        for one in head.generations:
            check = _Check(source, head.store.bytes, one, progress or silent)
            if not check.run(everything):
                check = _Check(source, head.store.bytes, one, progress or silent)
                check.run(True)
            checks.append(check)
        # What a shipper has removed meanwhile is no damage.
        named = [one.name for one in source.known_head().generations]
        checks = [check for check in checks if check.generation.name in named]
    for check in checks:
        check.note()
    newest = first = checks[-1]
    for check in reversed(checks[:-1]):
        if check.commit < first.generation.base_commit:
            break  # the journal did not go on there
        if check.generation.base_commit < first.generation.base_commit:  # or none is restored of it
            first = check
    return VerifyReport(
        source.uri,
        head.generations[-1].name,
        tuple(problem for check in checks for problem in check.problems),
        first.generation.base_commit,
        newest.commit,
        newest.last_ms,
        sum(check.commits for check in checks),
        sum(check.pieces for check in checks),
        sum(check.rows for check in checks),
        sum(check.segments for check in checks),
        sum(check.known for check in checks),
        all(check.noted for check in checks),
        bool(newest.problems),
    )


class _Check:
    def __init__(
        self, target: Target, store_uuid: bytes, generation: Generation, progress: StepProgress
    ) -> None:
        self.target = target
        self.store_uuid = store_uuid
        self.generation = generation
        self.progress = progress
        self.problems: list[CorruptionError] = []
        self.damaged: list[str] = []  # names of objects
        self.commit = generation.base_commit
        self.chain = generation.base_chain
        self.checksum = 0
        self.last_ms = generation.begun_ms
        self.commits = self.pieces = self.rows = self.segments = self.known = 0
        self.verified = Verified(0, 0, 0, 0, 0)  # by an earlier verification
        self.proved: set[str] = set()  # segments
        self.noted = False
        # What was read of the manifest: the names of segments, by the keys of their rows.
        self._manifest: dict[bytes, str] = {}
        self._manifest_commit = 0  # of the rows that were read
        self._is_elsewhere = False  # the archive is in an object store

    def run(self, everything: bool) -> bool:
        """Verify rows, records and segments; return False if that takes everything."""
        name = f"{self.generation.name}/{VERIFIED}"
        try:
            self.verified = decode_verified(self.target.objects.get(name), self.target.where(name))
            if not everything and not self.verified.damaged:
                self._go_on(self.verified)
        except FileNotFoundError:
            pass
        except CorruptionError as error:
            self._note(error)
        self._check_rows()
        self._check_records()
        needed = self.target.needed_segments(self.generation.name)
        # The list may be older than what was written since.
        named = set() if self._is_elsewhere else set(self._manifest.values()) - needed
        lacking = {name for name in named if self.target.objects.size(name) is None}
        if lacking and self.known:
            return False  # what was proved before may say that the archive is elsewhere
        for name in sorted(lacking):
            # No damage, for which the copy would be made anew: the store did not have it, either.
            problem = "the copy lacks this segment, which the manifest of the store names"
            self.problems.append(CorruptionError(self.target.where(name), problem))
        self._check_segments(needed)
        return True

    def note(self) -> None:
        if self.problems:
            verified = self.verified._replace(damaged=tuple(self.damaged))
        else:
            names = self.target.names(self.generation.name, 0)
            verified = Verified(
                self.commit,
                self.chain,
                sum(one.first <= self.commit for one in names),
                self.checksum,
                int(time.time() * 1000),
                tuple(sorted(self.proved)),
            )
        with suppress(UnreachableError):  # it may be readable only
            name = f"{self.generation.name}/{VERIFIED}"
            self.target.check_there()
            put_bytes(self.target.objects, name, verified.encode())
            self.noted = True

    def _go_on(self, verified: Verified) -> None:
        at = verified.commit_number
        before = [one for one in self.target.names(self.generation.name, 0) if one.first <= at]
        checksum = self.target.piece(before[-1])[2] if before else 0
        if (len(before), checksum) != (verified.pieces, verified.piece_checksum):
            return  # the target has lost something since: read everything
        self.known = at - self.commit
        self.commit, self.chain = verified.commit_number, verified.chain
        self.checksum = verified.piece_checksum
        self.proved = set(verified.segments)

    def _check_rows(self) -> None:
        """Check the base, unless it is known, and the rows that were written since."""
        found = self.target.rows(self.generation.name)
        try:
            self.target.base(self.generation, found)
        except CorruptionError as error:
            self._note(error)
        for rows in sorted(found, key=lambda one: one.last):  # merged rows come after their parts
            if not self.known or rows.last > self.commit:
                try:
                    self._check_changes(rows)
                except CorruptionError as error:
                    # A shipper removes rows after it has merged them into others.
                    left = self.target.names(self.generation.name, 1)
                    if rows.first == 0 or set(rows.parts).issubset(left):
                        self._note(error)

    def _check_changes(self, rows: Rows) -> None:
        before: tuple[int, bytes] = (-1, b"")
        for name in rows.parts:
            piece, body, _ = self.target.piece(name)
            where = self.target.where(name)
            self._check_identity(piece, where)
            change = ChangeReader(body, TABLES)
            while change.next():
                here = change.table, change.db_key
                if here <= before:
                    raise CorruptionError(where, f"the row {change.db_key.hex()} is out of order")
                before = here
                if change.table in _OF_ARCHIVE:
                    self._note_manifest(change)
                self.rows += 1
            if name.is_end and not rows.first:
                commit, chain = self.generation.base_commit, self.generation.base_chain
                if (piece.last_commit, piece.chain_after) != (commit, chain):
                    raise CorruptionError(where, "it is not the base that the head names")
            self.pieces += 1
            self._report()
        self._manifest_commit = rows.last

    def _note_manifest(self, change: ChangeReader) -> None:
        """Note which segments the store has, and whether they may be elsewhere."""
        if change.table == SEGMENTS:
            if change.kind == DELETE:
                self._manifest.pop(change.db_key, None)
            else:
                record = decode_row(change.db_key, change.value)
                self._manifest[change.db_key] = segment_name(record)
        elif change.db_key == META_REMOTE:
            self._is_elsewhere = change.kind != DELETE

    def _check_identity(self, piece: Piece, where: str) -> None:
        if piece.store_uuid != self.store_uuid:
            raise CorruptionError(where, "it is of another store")

    def _check_records(self) -> None:
        """Check the records after what is known, up to the first one that is missing or damaged."""
        try:
            self._check_pieces()
        except CorruptionError as error:
            self._note(error)
        proved = self.verified.commit_number
        if not self.problems and self.commit < proved:
            where = self.target.where(PieceName(self.generation.name, 0, self.commit + 1))
            gone = f"the pieces up to commit {proved} are missing, which were proved"
            self._note(CorruptionError(where, gone))

    def _check_pieces(self) -> None:
        for name in self.target.names(self.generation.name, 0):
            if name.first <= self.commit:
                continue
            where = self.target.where(name)
            if name.first != self.commit + 1:
                missing = PieceName(name.generation, 0, self.commit + 1)
                raise CorruptionError(self.target.where(missing), "the piece is missing")
            piece, body, checksum = self.target.piece(name)
            self._check_identity(piece, where)
            if piece.kind == END:
                decode_end(body, where)
                return
            if (piece.chain_before, piece.before) != (self.chain, self.checksum):
                raise CorruptionError(where, f"it does not follow commit {self.commit}")
            for commit in read_commits(piece, body, where):
                self.commits += 1
                self.commit, self.chain = commit.commit_number, commit.chain
                if self.commit > self._manifest_commit:
                    change = ChangeReader(commit.body, TABLES)
                    while change.next():
                        if change.table in _OF_ARCHIVE:
                            self._note_manifest(change)
            self.checksum, self.last_ms = checksum, piece.last_ms
            self.pieces += 1
            self._report()

    def _check_segments(self, needed: set[str]) -> None:
        there = set(self.target.objects.names(head_format.SEGMENTS))
        for name in sorted(needed):
            if name in self.proved and name in there:
                continue
            self.proved.discard(name)
            try:
                segment = self.target.segment(name)
                if f"{segment.trailer.checksum:016x}" != name.rpartition(".")[2]:
                    where = self.target.where(name)
                    raise CorruptionError(where, "it has another checksum than its name")
                check_checksums(segment)
            except CorruptionError as error:
                self._note(error, name)
                continue
            self.segments += 1
            self.proved.add(name)
            self._report()

    def _note(self, error: CorruptionError, name: str = "") -> None:
        self.problems.append(error)
        self.damaged.append(name or error.where.removeprefix(self.target.where("")))

    def _report(self) -> None:
        self.progress("verify", self.pieces + self.segments, 0)
