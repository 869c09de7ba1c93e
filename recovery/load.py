"""Loading streams into a store: all of a file, or nothing.

Streams come in under names of their own, `streamkeep:load:TOKEN:KEY`, by transactions of bounded
size, unsynced. When the source has come to its end, and its checksum or its count was right,
`publish` gives them their names, in one transaction with what they replace, durable as the store
says. A load that fails takes back what it has; one that is killed leaves streams under such names,
which `leftovers` finds. They harm nobody, and deleting them is all there is to do.

More than PUBLISH_STEP streams are named by several transactions: a crash between them leaves a
part of the streams loaded, each of them whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, Literal

from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import keys, xadd
from streamkeep.engine.commands.load import Loader
from streamkeep.engine.commands.retention import RetentionChange, set_retention
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, KeyExistsError
from streamkeep.format.redis.stream_parts import Counters, GroupPart, Messages, Node, Part

Existing = Literal["refuse", "skip", "replace"]

PREFIX: Final = b"streamkeep:load:"
PUBLISH_STEP: Final = 10_000  # streams
BATCH_BYTES: Final = 4 << 20  # of nodes in one transaction
BATCH_PENDING: Final = 5_000  # pending entries in one transaction


def leftovers(store: Store[Any]) -> list[bytes]:
    """Return the names of streams that loads in progress, or killed ones, have not named yet."""
    with store.snapshot() as snapshot:
        return [name for name, _ in keys.iter_keys(snapshot.txn) if name.startswith(PREFIX)]


class Load:
    """Streams that come into a store together; a context manager that takes back a failed load.

    Attributes:
        skipped: keys that existed and were left as they are.
    """

    def __init__(self, store: Store[Any], existing: Existing = "refuse") -> None:
        self.store = store
        self.existing = existing
        self.skipped: list[bytes] = []
        self._token = PREFIX + secrets.token_hex(6).encode() + b":"
        self._staged: dict[bytes, bytes] = {}

    def __enter__(self) -> Load:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.discard()

    def begin(self, key: bytes, where: str) -> Incoming | None:
        """Begin a stream; None when it is to be left out because the key exists.

        Raises:
            KeyExistsError: the key exists and is not to be replaced, or came already.
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
            with self.store.transaction() as transaction:
                self._name(transaction.txn, step)
            for key, _ in step:
                del self._staged[key]
        return total - (len(self.skipped) - skipped)

    def _name(self, txn: WriteTxn, step: list[tuple[bytes, bytes]]) -> None:
        for key, name in step:
            if self.existing != "replace" and txn.find_stream(key) is not None:
                if self.existing == "refuse":  # it was made meanwhile
                    raise KeyExistsError(f"stream {key!r} exists in the store")
                self.skipped.append(key)
                keys.delete(txn, [name])
            else:
                keys.rename(txn, name, key, False)

    def discard(self) -> None:
        """Take back what was not published."""
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
        """Set what is to be known of the stream besides its entries."""
        self.take(counters)
        for group in groups:
            self.take(group)
        if messages is not None:
            self.take(messages)
