"""The same step on a server and on the engine, and the engine's nodes given to a server."""

from __future__ import annotations

from typing import Any

from inside import begin_read
from model.nodes import Stream
from model.steps import Failed, Step, Trim, XInfoStream
from real_redis.commands import ALWAYS_A_CONSUMER, IDEMPOTENT
from real_redis.dump_payload import FOOTER, StreamValue, dump_stream
from real_redis.server import RealRedis
from streamkeep.engine.api.store import Store
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.format.core.errors import CommandError


def begin(server: RealRedis, max_bytes: int, max_entries: int) -> None:
    """Empty the server and set its node limits."""
    assert server.call(b"FLUSHALL") == b"OK"
    for name, value in (("bytes", max_bytes), ("entries", max_entries)):
        assert server.call(b"CONFIG", b"SET", f"stream-node-max-{name}".encode(), value) == b"OK"
    # DUMP then writes strings as they are, and payloads can be compared byte by byte.
    assert server.call(b"CONFIG", b"SET", b"rdbcompression", b"no") == b"OK"


def on_server(server: RealRedis, step: Step) -> Any:
    """Return a server's answer to a step."""
    raw = server.call(*step.arguments())
    return raw if isinstance(raw, Failed) else step.from_server(raw)


def on_store(store: Store, step: Step) -> Any:
    """Return the engine's answer to a step, without what a server of 7.0 lacks."""
    try:
        return step.as_server_knows(step.from_store(step.on_store(store)))
    except CommandError as error:
        return Failed(error.redis_error)


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
    theirs = on_server(server, XInfoStream(copy))
    ours = on_store(store, XInfoStream(name))
    for end in ("first-entry", "last-entry"):
        theirs.pop(end)  # compared above, with repeated fields
        ours.pop(end)
    assert theirs == ours
    assert server.call(b"DEL", copy) == 1


def check_bytes(server: RealRedis, store: Store, name: bytes) -> None:
    """Compare a stream without groups with the server's own to the last byte."""
    theirs, ours = server.call(b"DUMP", name), payload_of(store, name)
    if server.version < ALWAYS_A_CONSUMER:
        assert theirs == ours
        return
    # 7.2: another type and another footer; 8.6: after the groups comes what XADD IDMP remembers.
    body = ours[1:-FOOTER]
    assert theirs[1:-FOOTER][: len(body) if server.version >= IDEMPOTENT else None] == body


def empties_a_node(stream: Stream, trim: Trim) -> bool:
    """Say whether an exact MINID trim leaves a node without live entries.

    7.0: such a node stays. Its last slot is a tombstone at or above MINID, so that it may not go
    whole, and trimming inside does not look whether anything is left. The engine must drop it,
    for a node without live entries is damage to fsck.
    """
    minid = trim.minid
    if minid is None or trim.approximate:
        return False
    return any(
        node.slots[-1].id >= minid and all(slot.deleted or slot.id < minid for slot in node.slots)
        for node in stream.nodes
    )
