"""The engine's nodes, given to a server."""

from __future__ import annotations

from typing import Any

from inside import begin_read
from real_redis.dump_payload import StreamValue, dump_stream
from real_redis.server import RealRedis
from streamkeep.engine.api.store import Store
from streamkeep.engine.tables.node_walk import NodeWalk


def begin(server: RealRedis, max_bytes: int, max_entries: int) -> None:
    """Empty the server and set its node limits."""
    assert server.call(b"FLUSHALL") == b"OK"
    for name, value in (("bytes", max_bytes), ("entries", max_entries)):
        assert server.call(b"CONFIG", b"SET", f"stream-node-max-{name}".encode(), value) == b"OK"
    # DUMP then writes strings as they are, and payloads can be compared byte by byte.
    assert server.call(b"CONFIG", b"SET", b"rdbcompression", b"no") == b"OK"


def payload_of(store: Store, name: bytes) -> bytes:
    """Return a stream of the store as Redis's DUMP writes it."""
    txn = begin_read(store)
    try:
        stream = txn.find_stream(name)
        assert stream is not None
        nodes: list[tuple[tuple[int, int], bytes]] = []
        walk = NodeWalk(txn, stream)
        found = walk.first()
        while found:
            nodes.append(((walk.ms, walk.seq), walk.load()))
            found = walk.next()
        record = stream.record
        return dump_stream(
            StreamValue(
                nodes,
                record.length,
                (record.last_ms, record.last_seq),
                (record.first_ms, record.first_seq),
                (record.max_deleted_ms, record.max_deleted_seq),
                record.entries_added,
            )
        )
    finally:
        txn.close()


def entries_of(store: Store, name: bytes) -> list[Any]:
    """Return all entries of a stream as a server sends them, repeated fields and all."""
    return [
        [entry.id, [text for pair in entry.pairs for text in pair]] for entry in store.scan(name)
    ]


def check_restored(server: RealRedis, store: Store, name: bytes) -> None:
    """Give a stream's nodes to the server, which checks every byte of them, and compare."""
    copy = b"restored:" + name
    payload = payload_of(store, name)
    assert server.call(b"RESTORE", copy, 0, payload, b"REPLACE") == b"OK"
    assert server.call(b"XRANGE", copy, b"-", b"+") == entries_of(store, name)
    reversed_entries = server.call(b"XREVRANGE", copy, b"+", b"-")
    assert reversed_entries == entries_of(store, name)[::-1]
    flat, ours = server.call(b"XINFO", b"STREAM", copy), store.xinfo_stream(name)
    theirs = dict(zip(map(bytes.decode, flat[0::2]), flat[1::2], strict=True))
    for text in ("first-entry", "last-entry", "radix-tree-nodes"):  # entries were compared above
        del theirs[text]
    assert theirs == {text: ours[text] for text in theirs}
    assert server.call(b"DEL", copy) == 1
