"""Walking the macro nodes of a stream: the sealed ones in `nodes`, then the tail.

A `NodeWalk` is on one node at a time. Its bytes are checked when they are loaded, so that a walk
that only needs keys does not pay for the check. The methods that change a node update the
counters of the stream. Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from streamkeep.arrow.columns import CopiedNode
from streamkeep.engine.tables.scan import at_or_below, has_rows
from streamkeep.engine.txn.overlay import Cursor
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import ABSENT, MOST_ADDED, Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, Id, next_id
from streamkeep.format.node.envelope import counts_in, decode_envelope, encode_envelope, has_bitmap
from streamkeep.format.node.node import NodeIds, end_ids, live_ids, peek_counts
from streamkeep.format.node.tombstones import history_form, mark

NODE_OVERHEAD: Final = 128  # bytes of a copied node in addition to its listpack, estimated


class NodeWalk:
    """A position among the nodes of one stream.

    `first`, `last`, `seek`, `next` and `previous` return whether there is such a node. If so,
    `ms` and `seq` are the key of the node, and `load` returns its listpack.
    """

    def __init__(self, txn: Txn, stream: Stream) -> None:
        self.txn = txn
        self.stream = stream
        self.on_tail = False
        self.ms = 0
        self.seq = 0
        self.data = ABSENT  # the loaded listpack
        self.trimmed = b""  # its bitmap
        self.more = False  # see `copy`
        self._cursor: Cursor | None = None

    def first(self) -> bool:
        stream = self.stream
        if stream.record.sealed_nodes:
            # From 0 on, the cursor would pass all rows that were removed since the last flush.
            if (
                self._sealed().set_range(keys.node_key(stream.number, *stream.floor))
                and self._take()
            ):
                stream.floor = (self.ms, self.seq)
                return True
            raise self._missing()
        return self._take_tail()

    def last(self) -> bool:
        return self._take_tail() or self._last_sealed()

    def seek(self, ms: int, seq: int) -> bool:
        """Go to the node in whose range the ID `ms-seq` is; to the first one if all are above."""
        stream = self.stream
        if stream.has_tail() and (stream.tail_ms, stream.tail_seq) <= (ms, seq):
            return self._take_tail()
        if stream.record.sealed_nodes:
            found = at_or_below(self._sealed(), keys.node_key(stream.number, ms, seq))
            if found and self._take():
                return True
        return self.first()

    def above(self, ms: int, seq: int) -> bool:
        stream = self.stream
        after_ms, after_seq = next_id(ms, seq)
        if stream.record.sealed_nodes and (after_ms, after_seq) > (ms, seq):
            found = self._sealed().set_range(keys.node_key(stream.number, after_ms, after_seq))
            if found and self._take():
                return True
        return (stream.tail_ms, stream.tail_seq) > (ms, seq) and self._take_tail()

    def next(self) -> bool:
        if self.on_tail:
            return False
        if self._sealed().next() and self._take():
            return True
        return self._take_tail()

    def previous(self) -> bool:
        if self.on_tail:
            return self._last_sealed()
        return self._sealed().prev() and self._take()

    def load(self) -> bytes:
        """Return the listpack of this node, after a check of its checksum and its place."""
        if self.on_tail:
            self.trimmed = self.stream.trimmed
            self.data = self.stream.tail_data()
            return self.data
        try:
            envelope = decode_envelope(self._sealed().value(), "macro node")
        except CorruptionError as error:  # only an error is worth the text of the place
            raise type(error)(self._where(), error.problem, offset=error.offset) from None
        if (
            envelope.number != self.stream.number
            or envelope.ms != self.ms
            or envelope.seq != self.seq
        ):
            found = f"{envelope.ms}-{envelope.seq} of stream {envelope.number}"
            raise CorruptionError(self._where(), f"the envelope is of node {found}")
        self.trimmed = envelope.trimmed
        self.data = envelope.listpack
        return self.data

    def copy(self, end_ms: int, end_seq: int, enough: int, trimmed: bool) -> list[CopiedNode]:
        """Return this node and the following ones with keys up to `end`, and go to the next one.

        Args:
            enough: bytes after which it stops.
            trimmed: show trimmed entries, too; a node that shows nothing then is b"".

        Afterwards `self.more` says whether there is a next node.
        """
        nodes: list[CopiedNode] = []
        size = 0
        self.more = True
        while self.more and size < enough:
            ms = self.ms
            seq = self.seq
            if ms > end_ms or (ms == end_ms and seq > end_seq):
                break
            data = self._shown(trimmed)
            nodes.append((ms, seq, data))
            size += len(data) + NODE_OVERHEAD
            self.more = self.next()
        return nodes

    def groups(self, end: Id, nodes: int) -> list[tuple[int, int, int]]:
        """Return this node and those up to `end` in groups: key of the first, number of nodes.

        Args:
            nodes: how many make a group; the last group may have fewer.
        """
        found: list[tuple[int, int, int]] = []
        most: i64 = i64(nodes)
        count: i64 = 0
        ms = self.ms
        seq = self.seq
        more = True
        while more and (self.ms, self.seq) <= end:
            if count == most:
                found.append((ms, seq, int(count)))
                ms = self.ms
                seq = self.seq
                count = 0
            count += 1
            more = self.next()
        if count:
            found.append((ms, seq, int(count)))
        return found

    def count(self, start: Id, end: Id, trimmed: bool) -> tuple[int, int]:
        """Return how many entries of a range there are, and in how many nodes.

        Only headers are read, without their checksums, except of the first and the last node.

        Args:
            start, end: of the range, both included.
            trimmed: count trimmed entries, too.
        """
        entries: i64 = 0
        filled: i64 = 0
        found = self.seek(start[0], start[1])
        while found and (self.ms, self.seq) <= end:
            ms = self.ms
            seq = self.seq
            begins = (ms, seq) >= start
            here: i64 = self._peek(trimmed) if begins else self._look(start, end, trimmed)
            found = self.next()
            if begins and not (found and (self.ms, self.seq) <= end):
                self.seek(ms, seq)  # the range may end inside of it
                here = self._look(start, end, trimmed)
                found = False
            entries += here
            if here > 0:
                filled += 1
        return int(entries), int(filled)

    def _peek(self, trimmed: bool) -> i64:
        """Return how many entries this node has, by its header."""
        if not self.on_tail:
            value = self._sealed().value()
            if not (trimmed and has_bitmap(value)):
                return i64(counts_in(value)[0])
        data = self._shown(trimmed)
        return i64(peek_counts(data)[0]) if data else 0

    def _look(self, start: Id, end: Id, trimmed: bool) -> i64:
        """Return how many entries of this node are in a range."""
        data = self._shown(trimmed)
        count: i64 = 0
        if data:
            for one in live_ids(data, self.ms, self.seq):
                if start <= one <= end:
                    count += 1
        return count

    def _shown(self, trimmed: bool) -> bytes:
        data = self.load()
        return history_form(data, self.ms, self.seq, self.trimmed) if trimmed else data

    def _where(self) -> str:
        return f"macro node {self.ms}-{self.seq} of stream {self.stream.number}"

    def retire(self) -> None:
        """Remove this node, whose live entries are trimmed; the archive gets its share.

        That is all live slots if the stream archives, and the slots that were trimmed while it
        did. The node was loaded. Afterwards the walk is on no node.
        """
        if self.stream.archiving():
            if not self.on_tail:
                txn = self._writer()
                txn.move(
                    keys.NODES, keys.node_key(self.stream.number, self.ms, self.seq), keys.RETIRED
                )
                txn.retired = True
                self._removed()
                return
            self._put_retired(self.data)
        elif self.trimmed:
            ids = live_ids(self.data, self.ms, self.seq)
            self._put_retired(mark(self.data, self.ms, self.seq, ids, 0).data)
        self.drop()

    def bury(self, data: bytes) -> None:
        """Remove this node, whose live entries are deleted; the archive gets what was trimmed.

        Args:
            data: the listpack with tombstones only.
        """
        if self.trimmed:
            self._put_retired(data)
        self.drop()

    def drop(self) -> None:
        """Remove this node, which was loaded. Afterwards the walk is on no node."""
        if not self.on_tail:
            txn = self._writer()
            txn.delete(keys.NODES, keys.node_key(self.stream.number, self.ms, self.seq))
        self._removed()

    def _put_retired(self, data: bytes) -> None:
        """Give the archive this node with these bytes."""
        put_retired(self._writer(), self.stream.number, self.ms, self.seq, data, self.trimmed)

    def _removed(self) -> None:
        """Stop counting this node and its entries."""
        stream = self.stream
        stream.node_replaced(self.data, ABSENT)
        if self.on_tail:
            stream.drop_tail()
        else:
            stream.sealed_removed(len(self.data))
        stream.let_reopen()

    def store(self, data: bytes, trimmed: bytes) -> None:
        """Replace the bytes of this node, which was loaded."""
        txn = self._writer()
        stream = self.stream
        stream.node_replaced(self.data, data)
        if self.on_tail:
            stream.replace_tail(self.ms, self.seq, data, trimmed)
        else:
            stream.sealed_resized(len(self.data), len(data))
            value = encode_node(txn, stream.number, self.ms, self.seq, data, trimmed)
            txn.put(keys.NODES, keys.node_key(stream.number, self.ms, self.seq), value)
        self.data = data
        self.trimmed = trimmed

    def make_tail(self) -> None:
        """Make this sealed node, the newest one, the tail again."""
        stream = self.stream
        data = self.load()
        self._writer().delete(keys.NODES, keys.node_key(stream.number, self.ms, self.seq))
        stream.sealed_removed(len(data))
        stream.replace_tail(self.ms, self.seq, data, self.trimmed)

    def _writer(self) -> WriteTxn:
        txn = self.txn
        if not isinstance(txn, WriteTxn):
            raise TypeError("a read transaction changes nothing")
        return txn

    def _sealed(self) -> Cursor:
        cursor = self._cursor
        if cursor is None:
            cursor = self.txn.cursor(keys.NODES)
            self._cursor = cursor
        return cursor

    def _take(self) -> bool:
        """Take key and position from the cursor, if it is on a node of this stream."""
        cursor = self._cursor
        if cursor is None:
            return False
        number, ms, seq = keys.unpack_node_key(cursor.key())
        if number != self.stream.number:
            return False
        self.ms = ms
        self.seq = seq
        self.on_tail = False
        return True

    def _last_sealed(self) -> bool:
        if not self.stream.record.sealed_nodes:
            return False
        found = at_or_below(self._sealed(), keys.node_key(self.stream.number, MAX, MAX))
        if found and self._take():
            return True
        raise self._missing()

    def _missing(self) -> CorruptionError:
        count = self.stream.record.sealed_nodes
        return CorruptionError(
            f"stream {self.stream.number}",
            f"its record counts {count} sealed nodes, but there is none",
        )

    def _take_tail(self) -> bool:
        stream = self.stream
        if not stream.has_tail():
            return False
        self.ms = stream.tail_ms
        self.seq = stream.tail_seq
        self.on_tail = True
        return True


def encode_node(
    txn: WriteTxn, number: int, ms: int, seq: int, data: bytes, trimmed: bytes
) -> bytes:
    """Return a node as the commit of a transaction stores it."""
    epoch, commit_number = txn.context.epoch, txn.commit_number
    return encode_envelope(number, ms, seq, epoch, commit_number, b"", data, trimmed)


def put_retired(txn: WriteTxn, number: int, ms: int, seq: int, data: bytes, trimmed: bytes) -> None:
    """Write a node that must be archived."""
    value = encode_node(txn, number, ms, seq, data, trimmed)
    txn.put(keys.RETIRED, keys.node_key(number, ms, seq), value)
    txn.retired = True


def trimmed_above(txn: Txn, number: int, ms: int, seq: int) -> bool:
    """Return whether a node of a stream that begins above `ms-seq` is retired or archived."""
    after = keys.node_key(number, *next_id(ms, seq))
    prefix = keys.pack_number(number)
    return has_rows(txn, keys.RETIRED, prefix, after) or has_rows(txn, keys.SEGMENTS, prefix, after)


def add_newest_node(
    txn: WriteTxn, stream: Stream, ms: int, seq: int, data: bytes, trimmed: bytes
) -> None:
    """Write a sealed node that is above all others of the stream; its entries count already."""
    value = encode_node(txn, stream.number, ms, seq, data, trimmed)
    txn.put(keys.NODES, keys.node_key(stream.number, ms, seq), value)
    stream.sealed_added(len(data))


def append_node(
    txn: WriteTxn,
    stream: Stream,
    ms: int,
    seq: int,
    data: bytes,
    ids: NodeIds,
    trimmed: bytes = b"",
) -> None:
    """Append a whole node above all others of the stream; its entries are live, and were added."""
    add_newest_node(txn, stream, ms, seq, data, trimmed)
    before = stream.record.length
    if before == 0:
        stream.set_first(ids.first_live)
    stream.node_replaced(ABSENT, data)
    added = stream.record.entries_added + stream.record.length - before
    stream.set_entries_added(min(added, MOST_ADDED))
    stream.set_last_live(ids.last_live)
    stream.set_last_id(ids.last_slot)
    stream.let_reopen()


def seal_tail(txn: WriteTxn, stream: Stream) -> None:
    data = stream.tail_data()
    if data != ABSENT:
        add_newest_node(txn, stream, stream.tail_ms, stream.tail_seq, data, stream.trimmed)
        stream.drop_tail()


def refresh_ends(txn: Txn, stream: Stream, *, first: bool, last: bool) -> None:
    """Set first_id and last live ID of the record from the nodes, after a removal."""
    if stream.record.length == 0:
        stream.set_first((0, 0))
        stream.set_last_live((0, 0))
        return
    walk = NodeWalk(txn, stream)
    if first and walk.first():
        stream.set_first(end_ids(walk.load(), walk.ms, walk.seq).first_live)
    if last and walk.last():
        stream.set_last_live(end_ids(walk.load(), walk.ms, walk.seq).last_live)
