"""Dictionaries of segments: taken where they pay, left where not, without what was deleted."""

from __future__ import annotations

import random

from streamkeep.format.node import tombstones
from streamkeep.format.node.builder import NodeBuilder, encode_nodes
from streamkeep.format.node.dictionary import choose_dictionary
from streamkeep.format.node.envelope import PAGE_LISTPACK, encode_envelope, set_trimmed

LEVEL, BLOCK = 3, 256 << 10


def nodes_of(bodies: list[bytes]) -> list[bytes]:
    entries = [(1 + number, 0, [b"body", body]) for number, body in enumerate(bodies)]
    return [
        encode_envelope(1, ms, seq, 1, 2, b"", data, b"")
        for ms, seq, data in encode_nodes(entries, PAGE_LISTPACK)
    ]


def choose(nodes: list[bytes], raw_bytes: int) -> bytes | None:
    return choose_dictionary(nodes, raw_bytes, level=LEVEL, block_bytes=BLOCK)


def requests(count: int, seed: int) -> list[bytes]:
    """Lines of a web log: long texts out of a few hundred each, in every combination."""
    rng = random.Random(seed)
    agents = [rng.randbytes(60).hex().encode() for _ in range(400)]
    paths = [rng.randbytes(20).hex().encode() for _ in range(800)]
    return [b"%s %s" % (rng.choice(paths), rng.choice(agents)) for _ in range(count)]


def test_a_dictionary_is_chosen_where_blocks_repeat_each_other() -> None:
    nodes = nodes_of(requests(20_000, 1))
    assert choose(nodes, 64 << 20) is not None
    assert choose(nodes, 1 << 20) is None  # it would be a good part of so small a segment


def test_no_dictionary_is_chosen_where_it_does_not_pay() -> None:
    rng = random.Random(1)
    assert choose(nodes_of([rng.randbytes(100) for _ in range(3_000)]), 64 << 20) is None
    assert choose(nodes_of([b"%d" % n for n in range(20_000)]), 64 << 20) is None
    assert choose(nodes_of([b"x"] * 100), 64 << 20) is None
    assert choose([], 64 << 20) is None


def test_what_was_deleted_is_in_no_dictionary() -> None:
    secret = b"the secret of the deleted entries"
    bodies = [b"%s %s" % (secret, body) for body in requests(5_000, 1)]
    nodes = []
    for number, body in enumerate(requests(5_000, 1)):
        builder = NodeBuilder(1 + number, 0, [b"body"])
        builder.append(1 + number, 0, [b"body", bodies[number]])
        builder.append(1 + number, 1, [b"body", body])
        builder.append(1 + number, 2, [b"body", body[:80]])
        gone = [(1 + number, 0), (1 + number, 2)]
        data = tombstones.mark(builder.listpack(), 1 + number, 0, gone, 0).data
        nodes.append(encode_envelope(1, 1 + number, 0, 1, 2, b"", data, set_trimmed(b"", [2])))
    dictionary = choose(nodes, 64 << 20)
    assert dictionary is not None
    assert secret not in dictionary
