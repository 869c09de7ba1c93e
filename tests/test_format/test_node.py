"""Macro nodes: Redis's annotated dump, range reads, tombstones, rewriting, and damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.profile import configured
from streamkeep.arrow.columns import ColumnWriter
from streamkeep.format.core.entry import Entry
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import check, node, tombstones
from streamkeep.format.node.builder import builder_from
from test_format import made_nodes

TOP = (1 << 64) - 1


def test_a_node_of_redis_is_read() -> None:
    assert made_nodes.read(made_nodes.REDIS_NODE, *made_nodes.REDIS_KEY, shape=node.ENTRY) == [
        Entry(b"1526919030474-55", {b"name": b"Sara", b"n": b"7"}),
        (b"1526919030500-0", {b"msg": b"hi"}),
    ]
    text = made_nodes.read(made_nodes.REDIS_NODE, *made_nodes.REDIS_KEY, shape=node.TEXT)
    assert text[1] == ("1526919030500-0", {"msg": "hi"})
    assert node.peek_counts(made_nodes.REDIS_NODE[:26]) == (2, 1)
    ids = check.validate(made_nodes.REDIS_NODE, *made_nodes.REDIS_KEY)
    assert ids.first_live == made_nodes.REDIS_KEY
    assert ids.last_live == ids.last_slot == (1526919030500, 0)


# --- damage -------------------------------------------------------------------------------------


def everything(data: bytes, ms: int, seq: int) -> None:
    """Run all that reads or changes a node; only our error may come out."""
    calls = (
        lambda: check.validate(data, ms, seq),
        lambda: made_nodes.read(data, ms, seq),
        lambda: made_nodes.read(data, ms, seq, shape=node.ENTRY),
        lambda: made_nodes.read(data, ms, seq, (0, 0, TOP, TOP, 3, True)),
        lambda: node.end_ids(data, ms, seq),
        lambda: node.live_ids(data, ms, seq),
        lambda: tombstones.mark(data, ms, seq, [(1, 1), (1526919030474, 56)], 0),
        lambda: tombstones.mark_oldest(data, ms, seq, 3, TOP, TOP, set()),
        lambda: tombstones.rewrite(data, ms, seq, set()),
        lambda: builder_from(data, ms, seq).append(TOP, TOP, [b"f", b"v"]),
        lambda: node.peek_counts(data[:26]),
        lambda: ColumnWriter().add(data, ms, seq, 0, 0, TOP, TOP),
        lambda: ColumnWriter([b"a", b"name"], [b"name"], False).add(data, ms, seq, 0, 0, TOP, TOP),
    )
    for call in calls:
        try:
            call()
        except CorruptionError:
            continue


def test_every_flipped_bit_gives_our_error_or_a_result() -> None:
    for bit in range(len(made_nodes.REDIS_NODE) * 8):
        bad = bytearray(made_nodes.REDIS_NODE)
        bad[bit // 8] ^= 1 << bit % 8
        everything(bytes(bad), *made_nodes.REDIS_KEY)


def test_every_truncation_gives_our_error() -> None:
    for size in range(len(made_nodes.REDIS_NODE)):
        with pytest.raises(CorruptionError):
            check.validate(made_nodes.REDIS_NODE[:size], *made_nodes.REDIS_KEY)
        everything(made_nodes.REDIS_NODE[:size], *made_nodes.REDIS_KEY)


@configured(200)
@given(st.binary(max_size=80), st.tuples(st.integers(0, TOP), st.integers(0, TOP)))
@example(b"", (0, 0))
def test_hostile_elements(elements: bytes, key: tuple[int, int]) -> None:
    size = 6 + len(elements) + 1
    data = size.to_bytes(4, "little") + b"\xff\xff" + elements + b"\xff"
    everything(data, *key)


@configured(150)
@given(made_nodes.slots, st.randoms(use_true_random=False))
def test_damaged_nodes(entries: list[made_nodes.Slot], rng: random.Random) -> None:
    data, ms, seq = made_nodes.build(entries)
    bad = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(bad))
        match rng.randrange(3):
            case 0:
                bad[at] = rng.randrange(256)
            case 1:
                del bad[at : at + rng.randint(1, 5)]
                bad = bad or bytearray(b"x")
            case _:
                bad[at:at] = rng.randbytes(rng.randint(1, 5))
    if rng.random() < 0.8:  # so that damage after the header is reached
        bad[0:4] = len(bad).to_bytes(4, "little")
    everything(bytes(bad), ms, seq)
