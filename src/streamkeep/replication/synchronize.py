"""A full synchronization: all streams of a server, of which the store may have some already.

1. The streams of the file are loaded under temporary names (`transfer/loading/staged.py`).
2. Each that the store has under its own name is compared with it, entry by entry. Entries that the
   server has no more are trimmed, so that the archive gets them; new ones are appended. From here
   on the store is between two states of the server, and says so: a follower that ends here begins
   with another full synchronization.
3. One transaction gives new streams their names, the others the groups and counters of the file,
   deletes those that the server has no more, and writes the offset.

A stream is another one than that of the same name if an entry has other fields, if one is missing
in the middle, or was not trimmed here, if its last ID is lower, or if fewer entries were ever added
and its first one never came. It is replaced as if it had been deleted.

Entries that were added and went before the file was written are in no store. By `entries_added` of
the stream here, and in the file, there were so many; XSETID, RENAME and COPY may distort it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from streamkeep.commands.strings import delete_keys
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import history, keys, xadd
from streamkeep.engine.commands.xinfo import take_back
from streamkeep.engine.commands.xrange import xrange
from streamkeep.engine.commands.xtrim import trim_range
from streamkeep.engine.notify.wait_table import replaced
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.group import Group, destroy_group, groups_of
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.id_codec import MAX, Id, next_id, parse_id
from streamkeep.format.core.keys import GROUPS, name_key
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range
from streamkeep.format.redis.rdb import RdbEnd, StreamObject, read_records
from streamkeep.format.redis.rdb_values import Source
from streamkeep.format.redis.stream_dump import Losses
from streamkeep.format.rows.extension import RETENTION, without_section
from streamkeep.format.rows.meta_rows import INTERRUPTED, FollowingRow
from streamkeep.replication.commands import Followed, all_followed, put_row
from streamkeep.replication.link import LinkLost
from streamkeep.transfer.differences import BOTH, FIRST, diff_entries
from streamkeep.transfer.loading.staged import BATCH_ENTRIES, Load

Read = Callable[[int], bytes]


class Synchronization:
    """One full synchronization.

    Attributes:
        losses: what the file has beside the streams that are followed.
        lost: entries that went on the server before they came.
        dropped, dropped_entries: streams that went here, and their entries, since the server has
            none of that name, or one with another history.
        hidden: entries that the server has, and the store in the history only: they were trimmed.
        total: bytes of the file; None where the server does not say that.
        rest: what was read after the file.
    """

    def __init__(self, store: Store[Any], followed: Followed, row: FollowingRow) -> None:
        """Begin with the row that the store has."""
        self._store = store
        self._followed = followed
        self._row = row
        self._goes_on = bool(row.replication_id)
        self._changing = False
        self._earlier: set[bytes] = set()
        self._load = Load(store, "replace", token="follow")
        self._added = 0
        self.losses = Losses()
        self.lost = 0
        self.dropped = self.dropped_entries = self.hidden = 0
        self.total: int | None = None
        self.rest = b""

    def run(self, read: Read, where: str, replication_id: str, offset: int) -> FollowingRow:
        """Read a file, $length CRLF bytes or $EOF:mark CRLF bytes mark, and bring the store to
        its state; return the row that says so.

        Args:
            replication_id, offset: of the file.

        Raises:
            CorruptionError: the file is damaged, or has an object of an unknown type.
            CommandError: the store has a stream of its own under a name of the file.
        """
        with self._load as load:
            end = self._read(read, where)
            with self._store.snapshot() as snapshot:  # all names, before anything changes
                for key in load.staged:
                    self._followed.find(snapshot.txn, key)
            same = [key for key, staged in load.staged.items() if self._merge(key, staged)]
            now = int(time.time() * 1000)
            with self._store.transaction() as transaction:
                self._finish(transaction.txn, set(same))
                row = self._row._replace(
                    replication_id=replication_id,
                    offset=offset,
                    selected=end.metadata.get(b"repl-stream-db", b"").decode(errors="replace"),
                    since_ms=self._row.since_ms or now,
                    time_ms=now,
                    full=self._row.full + 1,
                    full_ms=now,
                    lost=self._row.lost + self.lost,
                    entries=self._row.entries + self._added,
                )
                put_row(transaction.txn, row)
            load.staged.clear()
        return row

    # --- 1: the file ----------------------------------------------------------------------------

    def _read(self, read: Read, where: str) -> RdbEnd:
        head = Source(read, where)
        line = b""
        while not line:  # empty ones come while the server prepares the file
            line = head.line(_LONGEST_LINE).rstrip(b"\r")
        mark = line.removeprefix(b"$EOF:") if line.startswith(b"$EOF:") else b""
        if not mark and not (line[:1] == b"$" and line[1:].isdigit()):
            raise LinkLost(f"found {line[:60]!r}, expected a file")
        self.total = None if mark else int(line[1:])
        source = Source(read, where, head.rest())
        for record in read_records(source):
            if isinstance(record, RdbEnd):
                if source.take(len(mark)) != mark or self.total not in (None, source.offset):
                    source.fail(f"the file ends here, but it began with {line[:60]!r}")
                self.rest = source.rest()
                return record
            here = record.database == self._row.database
            if not isinstance(record, StreamObject):
                if here:
                    self.losses.add(record.kind)
                continue
            wanted = here and self._followed.wants(record.key)
            incoming = self._load.begin(record.key, where) if wanted else None
            for part in record.parts:  # all of them, to reach the next record
                if incoming is not None:
                    incoming.take(part)
        raise AssertionError("unreachable: a file without an end raises")

    # --- 2: entries -----------------------------------------------------------------------------

    def _merge(self, key: bytes, staged: bytes) -> bool:
        """Give a stream the entries of the file; return False if it is to be replaced."""
        gone: list[tuple[Id, Id]] = []
        fresh: tuple[Id, Id] | None = None
        with self._store.snapshot() as snapshot:
            ours = self._followed.find(snapshot.txn, key)
            theirs = snapshot.txn.find_stream(staged)
            assert theirs is not None
            record = theirs.record if ours is None else ours.record
            last = record.last_id()
            lower = theirs.record.last_id() < last
            if ours is None or lower or theirs.record.entries_added < record.entries_added:
                first = Range(0, 0, MAX, MAX, 1, False, int(PAIRS))
                if ours is not None and self._came(snapshot.txn, key, staged, first):
                    self._earlier.add(key)
                if ours is None or lower or key not in self._earlier:
                    self._added += theirs.record.length
                    return False
            for difference in diff_entries(snapshot.txn, ours, snapshot.txn, theirs):
                start, end = _ids(difference.what)
                if difference.only == BOTH:
                    return False
                if difference.only == FIRST:
                    gone.append((start, end))
                    continue
                if end > last:
                    fresh = max(start, next_id(*last)), end
                if start > last:
                    continue
                # What is only in the file, and older than all here, may have been trimmed here:
                # then the history has the newest of it.
                until = min(end, last)
                if record.length and until > record.first_id():
                    return False
                wanted = Range(*start, *until, 1, True, int(PAIRS))
                if not self._came(snapshot.txn, key, staged, wanted):
                    return False
            each = max(1, theirs.node_bytes() // max(theirs.record.length, 1))
        if (gone or fresh) and not self._changing:  # one that ends before this does begins anew
            self._changing = True
            self._row = self._row._replace(replication_id=INTERRUPTED if self._goes_on else "")
            with self._store.transaction(sync="none") as transaction:
                put_row(transaction.txn, self._row)
        for start, end in gone:
            with self._store.transaction(sync="none") as transaction:
                trim_range(transaction.txn, key, start, end)
        if fresh is not None:
            self._append(key, staged, *fresh, max(1, min(BATCH_ENTRIES, _BATCH_BYTES // each)))
        return True

    def _came(self, txn: Txn, key: bytes, staged: bytes, wanted: Range) -> bool:
        """Return whether the history has the one entry of a loaded stream that is wanted."""
        found: list[Any] = xrange(txn, staged, wanted)
        if not found:
            return False
        entry_id: Id = found[0][:2]
        same = Range(*entry_id, *entry_id, 1, False, int(PAIRS))
        return found == self._store._environment.read(history.xrange, key, same)

    def _append(self, key: bytes, staged: bytes, start: Id, end: Id, most: int) -> None:
        while True:
            with self._store.snapshot() as snapshot:
                wanted = Range(*start, *end, most, False, int(PAIRS))
                entries: list[Any] = xrange(snapshot.txn, staged, wanted)
            if not entries:
                return
            ids = [xadd.NewId(xadd.EXPLICIT, ms, seq) for ms, seq, _ in entries]
            with self._store.transaction(sync="none") as transaction:
                xadd.xadd_many(transaction.txn, key, [flat for _, _, flat in entries], ids)
            self._added += len(entries)
            if entries[-1][:2] >= end:
                return
            start = next_id(*entries[-1][:2])

    # --- 3: all else ----------------------------------------------------------------------------

    def _finish(self, txn: WriteTxn, same: set[bytes]) -> None:
        for key, staged in self._load.staged.items():
            if key in same:
                self._take_over(txn, key, staged)
                continue
            former = self._followed.find(txn, key)
            if former is not None:
                self._drop(former)
            keys.rename(txn, staged, key, False)
            renamed = txn.find_stream(key)
            assert renamed is not None
            renamed.set_retention(self._followed.retention)
            # A key that was not to be followed may have had these before; an earlier state of the
            # former stream, to which a server went back, had none that did not come.
            if self._goes_on and key not in self._earlier:
                self._lose(renamed.record.entries_added - renamed.record.length)
        gone = [
            name
            for name in all_followed(txn)
            if self._followed.wants(name) and name not in self._load.staged
        ]
        for name in gone:
            self._drop(existing_stream(txn, name))
        delete_keys(txn, gone)

    def _take_over(self, txn: WriteTxn, key: bytes, staged: bytes) -> None:
        """Give a stream all but the entries of a loaded one, which goes."""
        ours, theirs = existing_stream(txn, key), existing_stream(txn, staged)
        for group in groups_of(txn, ours):
            destroy_group(txn, ours, group)
        for group in groups_of(txn, theirs):
            _move_group(txn, group, theirs, ours)
        record = theirs.record
        self.hidden += record.length - ours.record.length
        self._lose(record.entries_added - ours.record.entries_added)
        take_back(txn, ours, record.last_id())
        ours.set_last_id(record.last_id())
        ours.set_max_deleted(record.max_deleted_id())
        ours.set_entries_added(record.entries_added)
        retention = ours.retention() or self._followed.retention
        former = without_section(ours.record.extension, RETENTION)
        ours.record.extension = record.extension
        record.extension = former  # with the messages that go
        ours.set_retention(
            retention._replace(archive_deleted=self._followed.retention.archive_deleted)
        )
        keys.delete(txn, [staged])
        txn.events.append(replaced(key))

    def _drop(self, stream: Stream) -> None:
        retention = stream.retention() or self._followed.retention
        kept = self._followed.retention.archive_deleted
        stream.set_retention(retention._replace(archive_deleted=kept))
        self.dropped += 1
        self.dropped_entries += stream.record.length

    def _lose(self, entries: int) -> None:
        self.lost += max(0, entries)


def _move_group(txn: WriteTxn, group: Group, source: Stream, target: Stream) -> None:
    """Give a group of a stream to another one; its consumers and pending entries stay its own."""
    name = group.record.name
    txn.group_counts = {}  # others may have counted the groups of both streams
    txn.detach((source.number, name))
    former = name_key(source.db_key, name)
    txn.put_row(GROUPS, name_key(target.db_key, name), group.record.encode())
    txn.delete(GROUPS, former)


def _ids(what: str) -> tuple[Id, Id]:
    first, _, last = what.partition(" to ")
    start = parse_id(first.encode(), 0)
    return start, parse_id(last.encode(), 0) if last else start


_BATCH_BYTES: Final = 4 << 20
_LONGEST_LINE: Final = 1 << 16
