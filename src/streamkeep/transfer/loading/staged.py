"""Loading streams into a store: the whole source, or nothing.

1. Streams are loaded under temporary names, `streamkeep:load:TOKEN:KEY`, in transactions of limited
   size, without syncs.
2. When the whole source has been read and its checksum or count is right, `publish` renames the
   streams in one transaction, which also removes the streams that they replace. It is durable as
   the store's sync mode says.

A load that fails deletes its streams. A process that is killed leaves them under their temporary
names; `leftovers` finds them, and the user may delete them.

More than PUBLISH_STEP streams need several transactions. A crash between them leaves some of the
streams loaded, each of them complete.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, Literal

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.commands import keys
from streamkeep.engine.commands.load import Loader
from streamkeep.engine.commands.retention import RetentionChange, set_retention
from streamkeep.engine.commands.xadd import xadd_many
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, KeyExistsError
from streamkeep.format.redis.stream_parts import Counters, GroupPart, Node, Part
from streamkeep.transfer.formats import UNNAMED
from streamkeep.transfer.loading.tables import Row, RowError

Existing = Literal["refuse", "skip", "replace"]

BATCH_ENTRIES: Final = 1000  # of one transaction
PUBLISH_STEP: Final = 10_000  # streams renamed in one transaction
BATCH_BYTES: Final = 4 << 20  # bytes of nodes in one transaction
BATCH_PENDING: Final = 5_000  # pending entries in one transaction


def leftovers(store: Store[Any]) -> list[bytes]:
    """Return the temporary names of streams of loads that are running or were killed."""
    with store.snapshot() as snapshot:
        return [name for name, _ in keys.iter_keys(snapshot.txn) if name.startswith(UNNAMED)]


def _exists(
    problem: str, advice: str = 'existing="skip" leaves it, existing="replace" replaces it'
) -> KeyExistsError:
    error = KeyExistsError(problem)
    error.add_note(advice)
    return error


class Load:
    """Streams that are loaded together; a context manager that deletes what was not published.

    Args:
        existing: what happens to keys that exist: "refuse" the load, "skip" the stream, or
            "replace" the old stream.

    Attributes:
        skipped: keys that existed and were skipped.
        staged: the temporary name of each stream that has not got its own one, by its key.
    """

    def __init__(
        self,
        store: Store[Any],
        existing: Existing = "refuse",
        sync: Sync | None = None,
        *,
        token: str = "",
    ) -> None:
        """Begin a load.

        Args:
            sync: the sync mode of `publish`; None for that of the store.
            token: of the temporary names, for loads of which there is never more than one at a
                time: what killed ones have left goes. A random one if it is empty.
        """
        self.store = store
        self._sync = sync
        self.existing = existing
        self.skipped: list[bytes] = []
        # Set when the streams get their keys: what a failed load deletes is not to be archived.
        self._retentions: dict[bytes, RetentionChange] = {}  # by temporary name
        self._token = UNNAMED + (token or secrets.token_hex(6)).encode() + b":"
        left = [name for name in leftovers(store) if name.startswith(self._token)] if token else []
        self.staged: dict[bytes, bytes] = {name: name for name in left}
        self.discard()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.discard()

    def begin(self, key: bytes, where: str) -> Incoming | None:
        """Begin a stream; return None if it is skipped because the key exists.

        Args:
            where: names the stream in errors.

        Raises:
            KeyExistsError: the key exists and must not be replaced, or the source repeats it.
        """
        if key in self.staged:
            advice = "database=N takes one of several databases"
            raise _exists(f"{where} is repeated in the source", advice)
        if self.existing != "replace" and self.store.exists(key):
            if self.existing == "refuse":
                raise _exists(f"{where} exists in the store")
            self.skipped.append(key)
            return None
        name = self._token + key
        self.staged[key] = name
        return Incoming(self.store, name, where, self._retentions)

    def publish(self) -> int:
        """Rename all streams to their keys; return the number of streams loaded."""
        skipped = len(self.skipped)
        total = len(self.staged)
        while self.staged:
            step = list(self.staged.items())[:PUBLISH_STEP]
            with self.store.transaction(self._sync) as transaction:
                self._name(transaction.txn, step)
            for key, _ in step:
                del self.staged[key]
        return total - (len(self.skipped) - skipped)

    def _name(self, txn: WriteTxn, step: list[tuple[bytes, bytes]]) -> None:
        for key, name in step:
            if self.existing != "replace" and txn.find_stream(key) is not None:
                if self.existing == "refuse":  # created since `begin`
                    raise _exists(f"stream {key!r} exists in the store")
                self.skipped.append(key)
                keys.delete(txn, [name])
            else:
                keys.rename(txn, name, key, False)
                if name in self._retentions:
                    set_retention(txn, key, self._retentions[name])

    def discard(self) -> None:
        names, self.staged = list(self.staged.values()), {}
        for start in range(0, len(names), PUBLISH_STEP):
            self.store.using(sync="none").delete(*names[start : start + PUBLISH_STEP])


class Incoming:
    """One stream of a load: `take` its parts; or `append` its entries, and `take` the others."""

    def __init__(
        self, store: Store[Any], name: bytes, where: str, retentions: dict[bytes, RetentionChange]
    ) -> None:
        self._store = store
        self._retentions = retentions
        self._loader = Loader(name, where)
        self._nodes: list[Node] = []
        self._bytes = 0
        self.entries = 0
        with store.transaction(sync="none") as transaction:
            self._loader.begin(transaction.txn)

    def limit_nodes(self, max_bytes: int, max_entries: int) -> None:
        """Set the limits of the stream's macro nodes, instead of those of the store."""
        if not (0 <= max_bytes < 1 << 32 and 0 <= max_entries < 1 << 32):
            found = f"max_bytes {max_bytes}, max_entries {max_entries}"
            raise ValueError(f"{found}: limits of nodes must be from 0 to 2^32-1")
        with self._store.transaction(sync="none") as transaction:
            record = self._loader.stream(transaction.txn).record
            record.node_max_bytes, record.node_max_entries = max_bytes, max_entries

    def set_retention(self, change: RetentionChange) -> None:
        """Set the retention; it trims nothing before the next append or `maintain`."""
        change.check()
        self._retentions[self._loader.name] = change

    def take(self, part: Part) -> None:
        """Add the next part, in the order of `format/redis/stream_parts.py`."""
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
                self._loader.take(transaction.txn, part)

    def _flush(self) -> None:
        if self._nodes:
            with self._store.transaction(sync="none") as transaction:
                for node in self._nodes:
                    self._loader.take(transaction.txn, node)
            self._nodes, self._bytes = [], 0

    def _take_group(self, group: GroupPart) -> None:
        pending = iter(group.pending)
        with self._store.transaction(sync="none") as transaction:
            self._loader.begin_group(transaction.txn, group)
        while part := list(islice(pending, BATCH_PENDING)):
            with self._store.transaction(sync="none") as transaction:
                self._loader.add_pending(transaction.txn, group, part)
        with self._store.transaction(sync="none") as transaction:
            self._loader.end_group(transaction.txn, group)

    def append(self, rows: list[Row]) -> None:
        """Append entries in one transaction.

        Raises:
            CommandError: an ID is not above the one before it; `entry_index` is its index.
        """
        with self._store.transaction(sync="none") as transaction:
            txn, name = transaction.txn, self._loader.name
            if txn.find_stream(name) is None:
                raise CommandError(f"the stream {name!r} was deleted while it was being loaded")
            xadd_many(txn, name, [row.flat for row in rows], [row.new_id for row in rows])
        self.entries += len(rows)


class Entries:
    """Entries that come one by one, with their lines, and are appended in batches.

    Attributes:
        read: how many there were.
        loaded: how many of these were appended; the others are of streams that are not loaded.
    """

    def __init__(self, moved: Callable[[int], None], unit: str = "line") -> None:
        self._moved = moved
        self._unit = unit
        self._into: Incoming | None = None
        self._batch: list[Row] = []
        self._size = 0
        self.read = self.loaded = 0

    def add(self, into: Incoming | None, row: Row) -> None:
        """Take an entry; raise RowError where one before it is refused."""
        full = len(self._batch) >= BATCH_ENTRIES or self._size >= BATCH_BYTES
        if full or into is not self._into:
            self.flush()
        self._into = into
        self._batch.append(row)
        self._size += sum(map(len, row.flat))

    def flush(self) -> None:
        """Append what has come; raise RowError for an ID that is not above the one before it."""
        if self._batch and self._into is not None:
            try:
                self._into.append(self._batch)
            except CommandError as error:
                line = self._batch[error.entry_index or 0].line
                problem = f"the ID is not above the one before it in its stream: {error}"
                raise RowError(line, problem, unit=self._unit) from error
            self.loaded += len(self._batch)
        self.read += len(self._batch)
        self._batch, self._size = [], 0
        self._moved(self.loaded)
