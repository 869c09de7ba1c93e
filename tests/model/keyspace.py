"""The keys of the model, and the commands that take a stream as a whole."""

from __future__ import annotations

import pickle
from typing import TypeVar

from model.nodes import Stream
from model.values import NO_SUCH_KEY, ModelError

Self = TypeVar("Self", bound="Keyspace")


class Keyspace:
    """Streams by name. Nothing but streams is ever stored, so that no type can be wrong.

    Args:
        node_max_bytes, node_max_entries: Redis's stream-node-max-bytes and -entries.
        rewrites: rewrite nodes that are mostly tombstones, see `model.nodes`.
    """

    def __init__(
        self, node_max_bytes: int = 4096, node_max_entries: int = 100, *, rewrites: bool = False
    ) -> None:
        self.node_max_bytes = node_max_bytes
        self.node_max_entries = node_max_entries
        self.rewrites = rewrites
        self.streams: dict[bytes, Stream] = {}

    def copy(self: Self) -> Self:
        """Return an independent copy: what a transaction falls back to, or a snapshot shows."""
        copied: Self = pickle.loads(pickle.dumps(self))  # ten times as fast as deepcopy
        return copied

    def existing(self, key: bytes) -> Stream:
        """Return a stream that must be there."""
        if key not in self.streams:
            raise ModelError(NO_SUCH_KEY)
        return self.streams[key]

    def created(self, key: bytes) -> Stream:
        """Return a stream, created when it is missing."""
        return self.streams.setdefault(key, Stream(self.rewrites))

    def keys(self) -> list[bytes]:
        """KEYS *: all names, ascending."""
        return sorted(self.streams)

    def exists(self, *keys: bytes) -> int:
        """EXISTS: how many of the names are there, each counted as often as it is given."""
        return sum(key in self.streams for key in keys)

    def type(self, key: bytes) -> bytes:
        return b"stream" if key in self.streams else b"none"

    def delete(self, *keys: bytes) -> int:
        """DEL: how many there were."""
        return sum(self.streams.pop(key, None) is not None for key in keys)

    def rename(self, source: bytes, target: bytes) -> bool:
        """RENAME: a stream of the new name is deleted."""
        stream = self.existing(source)
        del self.streams[source]
        self.streams[target] = stream
        return True

    def renamenx(self, source: bytes, target: bytes) -> bool:
        """RENAMENX: False when the new name is taken, also by the stream itself."""
        self.existing(source)
        return target not in self.streams and self.rename(source, target)
