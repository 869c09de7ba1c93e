"""Idempotent appends of the model: which message of which producer became which entry."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from model.keyspace import Keyspace
from model.nodes import Stream
from model.values import Id, ModelError, Pairs

_HALF = 1 << 64


class IdempotencyCommands(Keyspace):
    """XCFGSET and XIDMPRECORD, and what XADD needs for IDMP and IDMPAUTO."""

    def xcfgset(
        self, key: bytes, *, duration: int | None = None, maxsize: int | None = None
    ) -> bool:
        """XCFGSET: a setting that really changes makes the stream forget all its producers."""
        stream = self.existing(key)
        if duration is not None and not 1 <= duration <= 86400:
            raise ModelError("ERR IDMP-DURATION must be between 1 and 86400 seconds")
        if maxsize is not None and not 1 <= maxsize <= 10000:
            raise ModelError("ERR IDMP-MAXSIZE must be between 1 and 10000 entries")
        if duration is None and maxsize is None:
            raise ModelError("ERR At least one parameter must be specified")
        before = stream.idmp_duration, stream.idmp_maxsize
        stream.idmp_duration = before[0] if duration is None else duration
        stream.idmp_maxsize = before[1] if maxsize is None else maxsize
        if (stream.idmp_duration, stream.idmp_maxsize) != before:
            stream.producers.clear()
        return True

    def xidmprecord(self, key: bytes, producer: bytes, iid: bytes, entry_id: Id) -> bool:
        """XIDMPRECORD: a message that is recorded counts as added."""
        if not producer:
            raise ModelError("ERR producer ID must be non-empty")
        if not iid:
            raise ModelError("ERR idempotent ID must be non-empty")
        stream = self.existing(key)
        if stream.get(entry_id) is None:
            raise ModelError("ERR No such message in stream")
        known = stream.producers.get(producer, {}).get(iid)
        if known is not None and known != entry_id:
            raise ModelError("ERR IID already exists for this producer with a different stream ID")
        if known is None:
            self.track(stream, producer, iid, entry_id)
            stream.iids_added += 1
        return True

    def track(self, stream: Stream, producer: bytes, iid: bytes, entry_id: Id) -> None:
        """Remember a message; the producer's oldest is forgotten when it has too many."""
        iids = stream.producers.setdefault(producer, {})
        iids[iid] = entry_id
        while len(iids) > stream.idmp_maxsize:
            del iids[next(iter(iids))]


def content_iid(pairs: Pairs) -> bytes:
    """Return the message ID that IDMPAUTO makes from an entry, whatever the order of its pairs."""
    hashes = [
        xxhash.xxh3_128_intdigest(name + len(name).to_bytes(8, "little") + value)
        for name, value in pairs
    ]
    low = _combine(hashes, lambda one: one % _HALF, lambda one: one // _HALF)
    high = _combine(hashes, lambda one: one // _HALF, lambda one: one % _HALF)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def _combine(hashes: list[int], summed: Callable[[int], int], mixed: Callable[[int], int]) -> int:
    """Return the sum of one half of the hashes, xor the other half's xor turned left by one."""
    total, mix = 0, 0
    for one in hashes:
        total = (total + summed(one)) % _HALF
        mix ^= mixed(one)
    return total ^ ((mix << 1 | mix >> 63) % _HALF)
