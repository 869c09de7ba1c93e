"""The rows that commits have changed, read from the journal: of this process and of all others.

No slot holds the journal. It is read a hundred times in a second, so that it is gone before it was
read only if this process was stopped, or a checkpoint came at the worst moment: then replicas get
everything anew.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import Final

from streamkeep.commands.strings import DEADLINES, STRINGS
from streamkeep.engine.journal.reader import Owner, Reader
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.format.core import keys
from streamkeep.format.core.errors import StoreError, StreamkeepError
from streamkeep.format.journal.journal import MOVE, ChangeReader

_LOOK: Final = 64  # commits between two looks at the clock
_STRINGS: Final = keys.space_prefix(STRINGS)
_DEADLINES: Final = keys.space_prefix(DEADLINES)


class Lost(StreamkeepError):
    """The journal does not have the commits that follow."""


class Changes:
    """The rows that some commits have changed; a row among them may be as it was before.

    Attributes:
        names: keys of rows of `keys`.
        streams: numbers of streams whose row, or deadline, has changed.
        strings: their names.
        rows: of NODES and GROUPS by the number of the stream, of CONSUMERS and PEL by that of the
            group.
    """

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.streams: set[int] = set()
        self.strings: set[bytes] = set()
        self.rows: dict[int, defaultdict[int, set[bytes]]] = {
            table: defaultdict(set) for table in (keys.NODES, keys.GROUPS, keys.CONSUMERS, keys.PEL)
        }

    def note(self, table: int, db_key: bytes) -> None:
        if table == keys.STREAMS:
            self.streams.add(int.from_bytes(db_key, "big"))
        elif table in self.rows:
            self.rows[table][int.from_bytes(db_key[:8], "big")].add(db_key)
        elif table == keys.KEYS:
            self.names.add(db_key)
        elif table == keys.ROWS and db_key.startswith(_STRINGS):
            self.strings.add(db_key[len(_STRINGS) :])
        elif table == keys.ROWS and db_key.startswith(_DEADLINES):
            self.streams.add(int.from_bytes(db_key[len(_DEADLINES) :], "big"))


class Log:
    """Reads the journal, from the commit of a first snapshot on.

    Attributes:
        first: that snapshot.
        changes: what the commits since then have changed, or since `take`.
    """

    def __init__(self, environment: Environment) -> None:
        context = environment.context
        journal = context.journal
        if journal is None:
            raise StoreError(f"{environment.path}: a store that is only read feeds no replicas")
        self.changes = Changes()
        self._tables = context.tables
        with context.apply_lock:
            context.begin_view().abort()
            start = journal.log.position
        owner = Owner(context.epoch, environment.uuid.bytes)
        self._reader = Reader(journal.folder, owner, start)
        self.first: ReadTxn = environment.begin_read()
        try:
            self.read(self.first.commit_number)
        except BaseException:
            self.first.close()
            raise
        self.take()

    def read(self, newest: int, until: float = math.inf) -> bool:
        """Read the records up to a commit, which was made; return whether it came so far.

        Args:
            until: the time at which it stops, as `time.monotonic` tells it.

        Raises:
            Lost: the records are gone.
        """
        reader = self._reader
        if reader.commit_number >= newest:
            return True
        changes = self.changes
        reader.begin()
        while reader.commit_number < newest:
            if reader.commit_number % _LOOK == 0 and time.monotonic() > until:
                return False
            body = reader.next()
            if body is None:
                raise Lost(f"the journal has no record after commit {reader.commit_number}")
            change = ChangeReader(body, self._tables)
            while change.next():
                changes.note(change.table, change.db_key)
                if change.kind == MOVE:
                    changes.note(change.kept, change.db_key)
        return True

    def take(self) -> Changes:
        """Return what has changed, and begin to collect again."""
        changes, self.changes = self.changes, Changes()
        return changes

    def close(self) -> None:
        self._reader.close()
