"""Reading the changes of an open store, commit by commit.

The feed has a snapshot of all rows as of a commit, and reads the records that follow in the journal
up to the commit of a newer snapshot, which then takes the place of the first one. So memory holds
the rows that changed between two snapshots, and a reader that keeps up holds no old pages.

It begins with the newest checkpoint, the oldest state of which a store has all rows. Commits before
it are gone, even where the journal still has their records: these are differences. LMDB shows the
newest image only, but the pages of the newest checkpoint are there, too: no flush may use them
until the next one is on disk. They are read with pread, without LMDB and without a lock; afterwards
the file of checkpoints says whether all that was read was still theirs.

A slot holds the journal from the older snapshot on, within a bound. A file that was retired all the
same is found by the chain of its records. No writer waits for any of this: a snapshot takes no
lock, the slot is a file, and a reader that sleeps is woken as those of XREAD are.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, cast

from streamkeep.engine.blocking.calls import BlockingCall
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.commands.reply_budget import Found
from streamkeep.engine.crash_recovery.stored_rows import StoredRows
from streamkeep.engine.feed.effects import Commit, Rows, commit_position, parse_position
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, NOWHERE, Owner, Reader
from streamkeep.engine.journal.slots import FEED, Slot, SlotLock, hold_slot
from streamkeep.engine.notify.wait_table import ANY_COMMIT, READ, Interest
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.context import position_in
from streamkeep.engine.txn.read_txn import ReadTxn, Txn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ChangesGoneError, CorruptionError, StoreError
from streamkeep.format.core.keys import TABLES
from streamkeep.format.journal.checkpoint import CheckpointSlot
from streamkeep.format.journal.journal import MOVE, ChangeReader
from streamkeep.format.journal.position import LogPosition

NOW: Final = "$"
HOLD_BYTES: Final = 4 << 30
_ALL: Final = NOWHERE._replace(commit_number=0)  # holds every file of the journal
_MOST_COMMITS: Final = 128  # at once; a task of an event loop computes so many between two awaits
_MOST_BYTES: Final = 1 << 20  # of their records
_FRESH_MS: Final = 500
_NOTE_S: Final = 1.0
_TRIES: Final = 3  # another checkpoint may come meanwhile
_FULL_READ: Final = "next: begin with a full read"

Get = Callable[[int, bytes], "bytes | None"]


class CommitCall(BlockingCall):
    """Waits for any commit after one."""

    def __init__(self, after: int) -> None:
        self._after = after

    def run(self, txn: Txn) -> Found:
        assert isinstance(txn, ReadTxn)
        return [[]] if txn.newest_commit() > self._after else []

    def pause(self, txn: Txn) -> int:
        return 0 if self.run(txn) else -1

    def interests(self) -> list[Interest]:
        return [(ANY_COMMIT, b"", READ)]


class Feed(Generic[Text]):
    """The commits of a store after one; a plan of `engine.api.follow`."""

    def __init__(
        self,
        environment: Environment,
        after: int | str | bytes | None,
        block_ms: int | None,
        text: Callable[[bytes], Text],
        *,
        decode: bool,
        durable: bool = False,
        hold_bytes: int = HOLD_BYTES,
    ) -> None:
        """Begin after a commit.

        Args:
            after: its number or its position; `NOW` for the newest, None for the oldest one that
                is possible.
            block_ms: how long to wait for a commit; 0 without limit, None not at all.
            durable: return commits that are on disk.

        Raises:
            ChangesGoneError: what follows is not there, or the store has made another commit.
        """
        self._lock: SlotLock | None = None
        self._base: ReadTxn | None = None
        self._next: ReadTxn | None = None
        if environment.follows:
            raise StoreError(
                f"{environment.path}: a standby has no journal; next: `streamkeep changes "
                f"{environment.follows}` reads the copy that it follows"
            )
        self._environment: Environment = environment
        self._folder: Folder = environment.folder.folder(JOURNAL_FOLDER)
        target = f"{FEED}{secrets.token_hex(8)}"
        self._slot: Slot = Slot(target, "", "", 0, _ALL, -1, 0, hold_bytes)
        self._durable: bool = durable
        self._noted: float = time.monotonic()
        self._read: float = self._noted
        self._block_s: float = math.inf if block_ms == 0 else (block_ms or 0) / 1000
        self._end: int = -1
        self._oldest: int = -1
        self._reader: Reader = self._reader_at(NOWHERE)
        try:
            self._hold()  # first: what a checkpoint needs then stays
            self._rows: Rows[Text] = Rows(self._begin(), text, decode=decode)
            self._oldest = self._reader.commit_number
            self._take_next()
            if after == NOW:
                self._go_to(self._end, 0)
            elif after is not None:
                self._go_to(*parse_position(after))
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        """End a feed that was never read."""
        self.close()

    def close(self) -> None:
        """End the snapshots, and hold the journal no longer."""
        base, self._base = self._base, None
        following, self._next = self._next, None
        for txn in (base, following):
            if txn is not None:
                txn.close()
        lock, self._lock = self._lock, None
        if lock is not None and lock.is_taken():  # not in a forked child
            with suppress(OSError):
                self._folder.remove(self._slot.name)
            lock.close()

    def _hold(self) -> None:
        """Hold the journal, unless this process may not write there: a lost file is found."""
        with suppress(OSError, StoreError):
            self._lock = hold_slot(self._folder, self._slot.target)
            if self._lock is not None:
                self._slot.write(self._folder)

    def _note(self) -> None:
        """Hold less of the journal, now and then."""
        now = time.monotonic()
        position = self._reader.position
        if (
            self._lock is not None
            and now - self._noted > _NOTE_S
            and position != self._slot.position
        ):
            self._noted = now
            self._slot = self._slot._replace(position=position)
            with suppress(OSError, StoreError):
                self._slot.write(self._folder)

    def _begin(self) -> Get:
        """Begin with the newest checkpoint; return what gets its rows."""
        for _ in range(_TRIES):
            slot = self._newest_checkpoint()
            if self._base is not None:
                self._base.close()
            base: ReadTxn = self._environment.retrying(self._environment.begin_stored)
            self._base = base
            start = position_in(base.raw())
            if slot is None or slot.commit_number >= start.commit_number:
                break
            # Rows that no record has changed since are those of the image.
            changed: set[tuple[int, bytes]] = set()
            reader = self._reader_at(slot.position())
            while reader.commit_number < start.commit_number and (body := reader.next()):
                change = ChangeReader(body, TABLES)
                while change.next():
                    changed.add((change.table, change.db_key))
                    if change.kind == MOVE:
                        changed.add((change.kept, change.db_key))
            with suppress(CorruptionError):  # pages that were used again
                data = os.fdopen(self._environment.folder.open(DATA_FILE), "rb", buffering=0)
                with data:
                    stored = StoredRows(data.fileno(), slot.meta())
                    older = {row: stored.value(*row) for row in sorted(changed)}
                whole = reader.commit_number == start.commit_number
                if whole and self._newest_checkpoint() == slot:
                    self._reader = self._reader_at(slot.position())
                    return lambda table, db_key: (
                        older[table, db_key]
                        if (table, db_key) in older
                        else base.get(table, db_key)
                    )
        self._reader = self._reader_at(start)
        return base.get

    def _newest_checkpoint(self) -> CheckpointSlot | None:
        file, epoch = self._environment.checkpoint_file, self._environment.context.epoch
        slot = None if file is None else file.newest()
        return slot if slot is not None and slot.epoch == epoch else None

    def _reader_at(self, position: LogPosition) -> Reader:
        owner = Owner(self._environment.context.epoch, self._environment.uuid.bytes)
        return Reader(self._folder, owner, position)

    def _go_to(self, commit: int, chain: int) -> None:
        """Apply what comes before a commit, and that."""
        oldest, newest = self._oldest, self._end
        where = self._environment.path
        if commit > newest:
            raise ChangesGoneError(
                f"{where}: there is no commit {commit} to go on after, the newest is {newest}: the "
                f"store was restored, or lost commits in a power cut; {_FULL_READ}",
                commit,
                oldest,
            )
        if commit < oldest:
            raise self._gone(commit)
        while self._reader.commit_number < commit:
            self._rows.apply(self._record())
        if chain and self._reader.chain and chain != self._reader.chain:
            raise ChangesGoneError(
                f"{where}: commit {commit} is another one than that which was read: the store was "
                f"restored, or lost commits in a power cut; {_FULL_READ}",
                commit,
                oldest,
            )

    def _gone(self, commit: int) -> ChangesGoneError:
        """Return the error of a commit after which something is missing."""
        slot, oldest = self._newest_checkpoint(), self._end
        if slot is not None:
            oldest = slot.commit_number
        copies = [one.target for one in self._environment.slots()]
        target = copies[0] if copies else "TARGET"
        return ChangesGoneError(
            f"{self._environment.path}: the changes after commit {commit} are gone from the "
            f"journal, which has those after commit {oldest}; next: `streamkeep changes {target} "
            f"--from {commit}` reads a copy that `streamkeep ship` keeps, or begin with a full "
            "read",
            commit,
            oldest,
        )

    # --- reading ----------------------------------------------------------------------------

    def call(self) -> BlockingCall:
        return CommitCall(self._reader.commit_number)

    def wait_ms(self) -> int | None:
        """Return how long that waits at most; None if it does not.

        An idle reader takes a new snapshot now and then: an erasure waits for old ones.
        """
        left = self._read + self._block_s - time.monotonic()
        if self._reader.commit_number < self._end or left <= 0:
            return None
        return max(1, min(_FRESH_MS, int(min(left, _FRESH_MS) * 1000)))

    def take(self, found: Found) -> list[Commit[Text]] | None:
        """Return some commits; None if there is none, and the time is over.

        Raises:
            ChangesGoneError: the journal does not have them any more.
        """
        commits: list[Commit[Text]] = []
        size = 0
        with translated():
            if self._reader.commit_number == self._end:
                self._advance()
            while (
                self._reader.commit_number < self._end
                and len(commits) < _MOST_COMMITS
                and size < _MOST_BYTES
            ):
                body = self._record()
                self._rows.apply(body)
                number, chain = self._reader.commit_number, self._reader.chain
                effects = tuple(self._rows.effects())
                commits.append(Commit(number, commit_position(number, chain), effects))
                size += len(body)
        self._note()
        now = time.monotonic()
        if commits:
            self._read = now
            return commits
        return None if now - self._read >= self._block_s else commits

    def _record(self) -> bytes:
        """Return the next record, which was made."""
        body = self._reader.next()
        if body is None:
            raise self._gone(self._reader.commit_number)
        return body

    def _take_next(self) -> None:
        """Take a snapshot of what is to be read."""
        self._next = self._environment.begin_read()
        # Without a log, nothing but the image is read, and no process can write.
        is_still = self._environment.context.log is None
        self._end = cast(ReadTxn, self._base if is_still else self._next).commit_number
        if self._durable:
            self._environment.sync_to(self._end)

    def _advance(self) -> None:
        """Let the newer snapshot be the base, and take another one; all before it was read."""
        if self._environment.context.log is None:
            return
        former, self._base = self._base, self._next
        assert former is not None
        assert self._base is not None
        former.close()
        self._rows.begin(self._base.get)
        self._reader.begin()
        self._take_next()
