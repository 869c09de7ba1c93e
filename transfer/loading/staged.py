"""Loading streams into a store: all of a file, or nothing.

Streams come in under temporary names, `streamkeep:load:TOKEN:KEY`, in transactions of bounded size
that are not synced. When the source has ended, and its checksum or its count was right, `publish`
gives them their names, in one transaction with the removal of the streams that they replace, as
durable as the store's sync mode says. A load that fails removes its streams; a load that is killed
leaves them under their temporary names, where `leftovers` finds them. They do no harm, and may be
deleted.

More than PUBLISH_STEP streams get their names in several transactions. A crash between them leaves
some of the streams loaded, each of them whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, Literal

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.commands import keys, xadd
from streamkeep.engine.commands.load import Loader
from streamkeep.engine.commands.retention import RetentionChange, set_retention
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, KeyExistsError
from streamkeep.format.redis.stream_parts import Counters, GroupPart, Messages, Node, Part
from streamkeep.transfer.formats import UNNAMED

Existing = Literal["refuse", "skip", "replace"]

PUBLISH_STEP: Final = 10_000  # streams
BATCH_BYTES: Final = 4 << 20  # of nodes in one transaction
BATCH_PENDING: Final = 5_000  # pending entries in one transaction


def leftovers(store: Store[Any]) -> list[bytes]:
    """Return the temporary names of streams of loads that are running or were killed."""
    with store.snapshot() as snapshot:
        return [name for name, _ in keys.iter_keys(snapshot.txn) if name.startswith(UNNAMED)]


class Load:
    """Streams that come into a store together; a context manager that removes a failed load.

    Attributes:
        skipped: keys that existed and were left as they are.
    """

    def __init__(
        self, store: Store[Any], existing: Existing = "refuse", sync: Sync | None = None
    ) -> None:
        """Begin a load; `sync` is the sync mode of `publish`, None for that of the store."""
        self.store = store
        self._sync = sync
        self.existing = existing
        self.skipped: list[bytes] = []
        self._token = UNNAMED + secrets.token_hex(6).encode() + b":"
        self._staged: dict[bytes, bytes] = {}

    def __enter__(self) -> Load:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.discard()

    def begin(self, key: bytes, where: str) -> Incoming | None:
        """Begin a stream; return None where it is left out because the key exists.

        Raises:
            KeyExistsError: the key exists and is not to be replaced, or the file has it twice.
        """
        if key in self._staged:
            raise KeyExistsError(f"{where} comes twice")
        if self.existing != "replace" and self.store.exists(key):
            if self.existing == "refuse":
                raise KeyExistsError(f"{where} exists in the store")
            self.skipped.append(key)
            return None
        name = self._token + key
        self._staged[key] = name
        return Incoming(self.store, name, where)

    def publish(self) -> int:
        """Give all streams their names; return how many came in."""
        skipped = len(self.skipped)
        total = len(self._staged)
        while self._staged:
            step = list(self._staged.items())[:PUBLISH_STEP]
            with self.store.transaction(self._sync) as transaction:
                self._name(transaction.txn, step)
            for key, _ in step:
                del self._staged[key]
        return total - (len(self.skipped) - skipped)

    def _name(self, txn: WriteTxn, step: list[tuple[bytes, bytes]]) -> None:
        for key, name in step:
            if self.existing != "replace" and txn.find_stream(key) is not None:
                if self.existing == "refuse":  # another process has made it since
                    raise KeyExistsError(f"stream {key!r} exists in the store")
                self.skipped.append(key)
                keys.delete(txn, [name])
            else:
                keys.rename(txn, name, key, False)

    def discard(self) -> None:
        """Remove the streams that were not published."""
        names, self._staged = list(self._staged.values()), {}
        for start in range(0, len(names), PUBLISH_STEP):
            self.store.using(sync="none").delete(*names[start : start + PUBLISH_STEP])


class Incoming:
    """One stream of a load; `take` its parts, or `append` entries and `finish`."""

    def __init__(self, store: Store[Any], name: bytes, where: str) -> None:
        self._store = store
        self._intake = Loader(name, where)
        self._nodes: list[Node] = []
        self._bytes = 0
        self.entries = 0
        with store.transaction(sync="none") as transaction:
            self._intake.begin(transaction.txn)

    def limit_nodes(self, max_bytes: int, max_entries: int) -> None:
        """Set the limits of the stream's macro nodes; by default they are those of the store."""
        if not (0 <= max_bytes < 1 << 32 and 0 <= max_entries < 1 << 32):
            raise ValueError("a limit of nodes is below 2^32")
        with self._store.transaction(sync="none") as transaction:
            record = self._intake.stream(transaction.txn).record
            record.node_max_bytes, record.node_max_entries = max_bytes, max_entries

    def set_retention(self, change: RetentionChange) -> None:
        """Set the retention; it removes nothing before the next append or `maintain`."""
        change.check()
        with self._store.transaction(sync="none") as transaction:
            set_retention(transaction.txn, self._intake.name, change)

    def take(self, part: Part) -> None:
        """Add a part, as `format/redis/stream_parts.py` orders them."""
        if isinstance(part, Node):
            self._nodes.append(part)
            self._bytes += len(part.data)
            if self._bytes >= BATCH_BYTES:
                self._flush()
            return
        self._flush()
        if isinstance(part, Counters):
            self.entries = part.length
        if isinstance(part, GroupPart):
            self._take_group(part)
        else:
            with self._store.transaction(sync="none") as transaction:
                self._intake.take(transaction.txn, part)

    def _flush(self) -> None:
        if self._nodes:
            with self._store.transaction(sync="none") as transaction:
                for node in self._nodes:
                    self._intake.take(transaction.txn, node)
            self._nodes, self._bytes = [], 0

    def _take_group(self, group: GroupPart) -> None:
        pending = iter(group.pending)
        with self._store.transaction(sync="none") as transaction:
            self._intake.begin_group(transaction.txn, group)
        while part := list(islice(pending, BATCH_PENDING)):
            with self._store.transaction(sync="none") as transaction:
                self._intake.add_pending(transaction.txn, group, part)
        with self._store.transaction(sync="none") as transaction:
            self._intake.end_group(transaction.txn, group)

    def append(self, entries: Iterable[tuple[int, int, list[bytes]]]) -> None:
        """Append entries (ms, seq, [field, value, ...]) in one transaction.

        Raises:
            CommandError: an ID is not above the one before; `entry_index` says which.
        """
        ids = []
        flats = []
        for ms, seq, flat in entries:
            ids.append(xadd.NewId(xadd.EXPLICIT, ms, seq))
            flats.append(flat)
        with self._store.transaction(sync="none") as transaction:
            txn = transaction.txn
            if txn.find_stream(self._intake.name) is None:
                raise CommandError("the stream was deleted while it was being loaded")
            xadd.xadd_many(txn, self._intake.name, flats, ids)
        self.entries += len(flats)

    def finish(
        self,
        counters: Counters,
        groups: Iterable[GroupPart] = (),
        messages: Messages | None = None,
    ) -> None:
        """Set the counters, groups and messages of the stream."""
        self.take(counters)
        for group in groups:
            self.take(group)
        if messages is not None:
            self.take(messages)
