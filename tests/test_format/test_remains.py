"""What is found of a damaged segment is what was in it, whatever the damage."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import zstandard

from segments import nodes_of, opened, some, write
from streamkeep.format.segment.remains import remains

ENVELOPES = nodes_of(some(400))


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, size: data[offset : offset + size]


def keys(data: bytes) -> list[tuple[int, int]]:
    return [(one.ms, one.seq) for one in remains(reader(data), len(data))]


@pytest.fixture(scope="module", params=["plain", "dictionary"])
def segment(request: pytest.FixtureRequest) -> bytes:
    if request.param == "plain":
        return write(ENVELOPES)
    samples: list[bytes | bytearray | memoryview] = [one for one in ENVELOPES for _ in range(20)]
    dictionary = zstandard.train_dictionary(2000, samples).as_bytes()
    return write(ENVELOPES, dictionary=dictionary)


def test_a_whole_file_gives_all_nodes(segment: bytes) -> None:
    index = opened(segment).index
    whole = [
        (one.ms, one.seq)
        for number in range(len(index.blocks))
        for one in opened(segment).block(number)
    ]
    assert keys(segment) == whole


def test_a_file_that_was_cut_gives_the_nodes_before_the_cut(segment: bytes) -> None:
    whole, blocks = keys(segment), opened(segment).index.blocks
    trailer = opened(segment).trailer
    for cut in random.Random(1).sample(range(len(segment)), 40):
        found = keys(segment[:cut])
        assert found == whole[: len(found)]
        if not trailer.dictionary_size or cut >= trailer.blocks_size + trailer.dictionary_size:
            before = sum(one.nodes for one in blocks if one.offset + one.size <= cut)
            assert len(found) >= before


def test_damage_costs_the_nodes_of_its_block(segment: bytes) -> None:
    whole, blocks = keys(segment), opened(segment).index.blocks
    rng = random.Random(2)
    for _ in range(60):
        at = rng.randrange(opened(segment).trailer.blocks_size)
        damaged = bytearray(segment)
        damaged[at] ^= 1 << rng.randrange(8)
        found = keys(bytes(damaged))
        assert set(found) <= set(whole)
        (hit,) = [one.nodes for one in blocks if one.offset <= at < one.offset + one.size]
        assert len(found) >= len(whole) - hit


def test_noise_and_nothing_give_nothing() -> None:
    rng = random.Random(3)
    assert keys(b"") == []
    for size in (3, 4, 30, 5000):
        assert keys(rng.randbytes(size)) == []
        assert keys(b"\x28\xb5\x2f\xfd" + rng.randbytes(size)) == []
