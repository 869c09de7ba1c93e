"""Searching a copy for entries that were erased from its store: every generation, named or not.

Contents are in a node as a whole when it comes into `nodes` or `retired`, in a row of a piece or as
a PUT of a record. Records only add to the last node of a stream, whose row is put together again
from the base on. So each state of each node is looked at, and all blocks of segments.

A stream may get the key after its entries, as one does that `load` writes under another name. So
all pieces are read twice: first for the numbers of the streams that had the key at any time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.erase import archived_under
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import read_slot, slot_name
from streamkeep.format.copies.head import SEGMENTS as SEGMENT_FOLDER
from streamkeep.format.copies.piece import END, is_generation_name, read_commits
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.journal.journal import DELETE, MOVE, PUT, ChangeReader
from streamkeep.format.node.envelope import Envelope, decode_envelope, trimmed_slots
from streamkeep.format.node.erase import emptied_ids
from streamkeep.format.node.node import SAME_FIELDS, SlotCursor, read_header
from streamkeep.format.node.where import Where
from streamkeep.format.rows.records import decode_key_row
from streamkeep.format.rows.retired import decode_former_name
from streamkeep.recovery.copies.target import Place, Target

_LOOK_S: Final = 0.2  # between looks at how far the shipper is
_WITH_NODES: Final = (keys.STREAMS, keys.NODES, keys.RETIRED)
_FORMER_NAME: Final = bytes(16)  # an ID of the row in `retired` that has a name and no node


class Remains(NamedTuple):
    """An object of a copy that has contents of entries which were erased."""

    name: str
    ids: list[Id]


def find_in_copy(
    store: Store[Any],
    target: Place,
    key: bytes,
    ids: Collection[Id],
    wanted: dict[bytes, list[bytes]] | None,
    timeout_s: float,
) -> list[Remains]:
    """Return the objects of a copy that have contents of entries.

    Args:
        ids: the entries.
        wanted: instead of IDs, what their fields are; see `Where`.
        timeout_s: how long to wait until a shipper of the store has replaced what had them.

    Raises:
        CorruptionError: something in the copy cannot be read, and so not be searched.
        NotAStoreError, UnreachableError: there is no copy, or it does not answer.
    """
    source = Target(target)
    source.known_head()
    environment = store._environment
    with environment.begin_read() as txn:
        newest = txn.newest_commit()
    slots = environment.folder.folder(JOURNAL_FOLDER)
    deadline = time.monotonic() + timeout_s
    while True:
        slot = read_slot(slots, slot_name(source.uri))
        over = slot is None or time.monotonic() >= deadline
        if over or (slot is not None and slot.shipped >= newest and not slot.erased):
            search = _Search(source, environment.read(archived_under, key), key, ids, wanted)
            try:
                search.run()
                source.known_head()  # a copy that has gone meanwhile has nothing to be found
            except CorruptionError:
                if over:
                    raise  # before that, the shipper may just have removed it
            else:
                if over or not search.found:
                    return [Remains(name, sorted(found)) for name, found in search.found.items()]
        time.sleep(_LOOK_S)


class _Search:
    """One search of a copy.

    Attributes:
        found: the IDs by the name of the object.
    """

    def __init__(
        self,
        target: Target,
        numbers: set[int],
        key: bytes,
        ids: Collection[Id],
        wanted: dict[bytes, list[bytes]] | None,
    ) -> None:
        self.target = target
        self.numbers = numbers  # of streams that have the key, or had it
        self.key = key
        self.ids = ids
        self.where = None if wanted is None else Where(wanted)
        self.found: dict[str, set[Id]] = {}
        self._tails: dict[bytes, bytes] = {}  # rows of `streams`

    def run(self) -> None:
        """Search all pieces and segments, also those that the head no longer names."""
        generations = list(filter(is_generation_name, self.target.objects.folders()))
        for generation in generations:
            for name, body, _ in self._bodies(generation):
                self._learn_numbers(body, self.target.where(name))
        for generation in generations:
            self._tails = {}
            for name, body, is_base in self._bodies(generation):
                self._search_changes(name, body, is_base=is_base)
        for one in self.target.objects.names(SEGMENT_FOLDER):
            self._search_segment(one)

    def _bodies(self, generation: str) -> Iterator[tuple[str, bytes, bool]]:
        """Yield the name of each piece, its rows or one of its records, and `is_base`."""
        for name in self.target.names(generation, 1):
            _, body, _ = self.target.piece(name)
            yield str(name), body, name.first == 0
        for name in self.target.names(generation, 0):
            piece, body, _ = self.target.piece(name)
            if piece.kind != END:
                for commit in read_commits(piece, body, self.target.where(name)):
                    yield str(name), commit.body, True

    def _learn_numbers(self, body: bytes, where: str) -> None:
        """Note the streams that rows or a record give the key, or say that it was theirs."""
        change = ChangeReader(body, keys.TABLES)
        while change.next():
            if change.kind != PUT:
                continue
            if change.table == keys.KEYS:
                row = row_body(keys.KEYS, change.db_key, change.value, where)
                number, key = decode_key_row(row, where)
            elif change.table == keys.RETIRED and change.db_key[8:] == _FORMER_NAME:
                number = keys.unpack_number(change.db_key[:8])
                key = decode_former_name(number, change.value, where)
            else:
                continue
            if key == self.key:
                self.numbers.add(number)

    def _search_changes(self, name: str, body: bytes, *, is_base: bool) -> None:
        """Search rows or a record.

        Args:
            is_base: records that follow change these rows.
        """
        change = ChangeReader(body, keys.TABLES)
        where = self.target.where(name)
        while change.next():
            table, db_key = change.table, change.db_key
            if table not in _WITH_NODES or keys.unpack_number(db_key[:8]) not in self.numbers:
                continue
            if table == keys.STREAMS and change.kind not in (DELETE, MOVE):
                tail = change.change().apply(self._tails.get(db_key))
                if is_base:
                    self._tails[db_key] = tail
                self._search_node(name, decode_envelope(tail, where))
            elif table == keys.STREAMS and is_base:
                self._tails.pop(db_key, None)
            elif change.kind == PUT and db_key[8:] != _FORMER_NAME:
                self._search_node(name, decode_envelope(change.value, where))

    def _search_segment(self, name: str) -> None:
        segment = self.target.segment(name)
        if segment.index.key == self.key or segment.index.stream_number in self.numbers:
            for number in range(len(segment.index.blocks)):
                for node in segment.block(number):
                    self._search_node(name, node)

    def _search_node(self, name: str, node: Envelope) -> None:
        if not node.listpack:
            return
        cursor = SlotCursor(read_header(node.listpack, node.ms, node.seq))
        gone: set[Id] = set()
        if self.where is not None:  # an erased slot has empty values, which may be what is wanted
            gone = emptied_ids(node.listpack, node.ms, node.seq, trimmed_slots(node.trimmed))
        while cursor.next():
            one = cursor.id()
            if self.where is not None:
                has = one not in gone and self.where.matches(cursor)
                cursor.skip_fields()
            else:
                # Of an erased entry there are no bytes, but for names that others use, too.
                shared = bool(cursor.flags & SAME_FIELDS)
                pairs = cursor.pairs()
                has = one in self.ids and any(pairs[1::2] if shared else pairs)
            if has:
                self.found.setdefault(name, set()).add(one)
