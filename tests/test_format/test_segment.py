"""Archive segments: round trips, what history keeps of a node, and damage of every kind."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from model.profile import configured
from patience import peak_of
from segments import TOP, UUID, Pairs, entries_of, nodes_of, opened, some, write
from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import FormatVersionError
from streamkeep.format.node import check, node, ranges, tombstones
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.format.node.envelope import decode_envelope, encode_envelope, set_trimmed
from streamkeep.format.rows.records import is_safe_path
from streamkeep.format.segment.index import (
    INDEX_HEADER,
    INDEX_ROW,
    TRAILER,
    Index,
    number_of,
    seek_table,
)
from streamkeep.format.segment.segment import segment_path
from test_format.made_segments import NUMBER, forge, ids, problems, row_of, trained

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"
pairs = st.lists(st.binary(max_size=6), min_size=2, max_size=6).map(lambda x: x[: len(x) // 2 * 2])
entry_lists = st.dictionaries(ids, pairs, min_size=1, max_size=30).map(
    lambda found: [(*one, fields) for one, fields in sorted(found.items())]
)


@given(entry_lists, st.integers(30, 300), st.integers(1, 2000), st.integers(-3, 6))
def test_what_is_written_is_read_back(
    entries: list[Pairs], node_size: int, block_bytes: int, level: int
) -> None:
    envelopes = nodes_of(entries, node_size)
    segment = opened(write(envelopes, block_bytes=block_bytes, level=level))
    assert entries_of(segment) == entries
    assert list(segment.check()) == []
    trailer = segment.trailer
    assert (trailer.entries, trailer.nodes) == (len(entries), len(envelopes))
    assert (trailer.first_id, trailer.last_id) == (entries[0][:2], entries[-1][:2])
    assert trailer.raw_size == sum(map(len, envelopes))
    assert (trailer.created_ms, trailer.epoch, trailer.file_number) == (1, 2, 3)
    index = segment.index
    assert (index.store_uuid, index.stream_number, index.key) == (UUID, NUMBER, b"orders")
    for block in index.blocks:
        assert block.raw_size <= block_bytes or block.nodes == 1
    for ms, seq, _ in entries:
        for place in (segment.seek(ms, seq), segment.seek_last(ms, seq)):
            assert index.blocks[place].first_id <= (ms, seq) <= index.blocks[place].last_id
    assert segment.seek_last(0, 0) == (0 if entries[0][:2] == (0, 0) else -1)
    last = trailer.last_id
    assert segment.seek(TOP, TOP) == len(index.blocks) - (1 if last == (TOP, TOP) else 0)


@given(entry_lists, st.data())
def test_history_keeps_what_lives_and_what_was_trimmed(
    entries: list[Pairs], data: st.DataObject
) -> None:
    ms, seq, fields = entries[0]
    builder = NodeBuilder(ms, seq, fields[0::2])
    for entry in entries:
        builder.append(*entry)
    listpack = builder.listpack()
    states = data.draw(
        st.lists(st.sampled_from(["live", "trimmed", "deleted"]), min_size=len(entries))
    )
    gone = [entry[:2] for entry, state in zip(entries, states, strict=False) if state != "live"]
    if gone:
        listpack = tombstones.mark(listpack, ms, seq, gone, 0).data
    slots = [i for i in range(len(entries)) if states[i] == "trimmed"]
    bitmap = set_trimmed(b"", slots)
    kept = [entries[i] for i in range(len(entries)) if states[i] != "deleted"]
    shown = tombstones.history_form(listpack, ms, seq, bitmap)
    if not kept:
        assert shown == b""
        return
    found: list[Any] = []
    check.validate(shown, ms, seq)
    ranges.read_range(
        shown, ms, seq, ranges.Range(0, 0, TOP, TOP, 1 << 40, False, node.PAIRS), found
    )
    assert found == kept
    assert tombstones.history_form(shown, ms, seq, b"") is shown

    segment = opened(write([encode_envelope(NUMBER, ms, seq, 1, 2, b"r", listpack, bitmap)]))
    assert entries_of(segment) == kept
    assert list(segment.check()) == []


def test_paths_of_segments_are_safe_and_unique() -> None:
    path = segment_path(3, b"a/../b\0" * 20, (1, 2), (TOP, TOP), 4, 5)
    assert is_safe_path(path)
    folder, name = path.split("/")
    assert folder.startswith("3-a%2F..%2Fb%00")
    assert name == f"1-2_{TOP}-{TOP}.4-5.seg"
    assert max(len(folder), len(name)) < 255
    assert segment_path(3, b"", (1, 2), (3, 4), 5, 6).startswith("3-/")


@pytest.mark.slow
@pytest.mark.parametrize("with_dictionary", [False, True])
def test_every_flipped_bit_is_reported(with_dictionary: bool) -> None:
    envelopes = nodes_of(some(60), 300)
    dictionary = None
    if with_dictionary:
        dictionary = trained(512, nodes_of(some(3000), 300))
    data = write(envelopes, dictionary=dictionary)
    assert problems(data) == []
    harmless = []
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        if not problems(bytes(bad)):
            harmless.append(bit)
    assert harmless == []


def test_damage_is_named_by_block_and_the_others_are_read() -> None:
    data = write(nodes_of(some(200)))
    segment = opened(data)
    block = segment.index.blocks[2]
    bad = bytearray(data)
    bad[block.offset + 20] ^= 1
    found = [str(error) for error in problems(bytes(bad))]
    assert len(found) == 1
    assert found[0].startswith("block 2 of here: the checksum")
    assert opened(bytes(bad)).block(1)


def test_every_truncation_is_reported() -> None:
    data = write(nodes_of(some(60), 300))
    for size in range(len(data)):
        assert problems(data[:size])
        assert problems(data[size + 1 :])


def test_concatenated_and_swapped_files_are_reported() -> None:
    one, two = write(nodes_of(some(60))), write(nodes_of(some(90)))
    for data in (one + two, one + one, two + one, one + b"\n", b"\n" + one, one[:-1] + b"\n"):
        assert problems(data)
    a, b = opened(one), opened(two)
    assert a.checksum != b.checksum
    cut = a.trailer.blocks_size
    assert problems(one[:cut] + two[b.trailer.blocks_size :])
    assert "describes a segment of" in str(problems(one + two)[0])


def test_a_text_mode_copy_is_named() -> None:
    data = write(nodes_of(some(60)))
    at = data.rindex(b"SKSEG\r\n")
    assert "not a segment" in str(problems(data[:at] + b"SKSEGG\n\x1a" + data[at + 8 :])[0])


def test_a_newer_format_is_refused_as_such() -> None:
    data = write(nodes_of(some(60)))
    segment = opened(data)
    newer = segment.trailer._replace(version=2).encode()
    at = len(data) - TRAILER.size - len(seek_table(segment.trailer, segment.index.blocks))
    with pytest.raises(FormatVersionError, match="segment format 2"):
        opened(data[:at] + newer + data[at + TRAILER.size :])


def test_a_bomb_allocates_no_more_than_the_index_promises() -> None:
    big = 64 << 20
    compress = zstandard.ZstdCompressor(level=1).compress
    bomb = compress(bytes(big))
    honest_size = forge([bomb], [row_of(bomb, big)])
    small_promise = forge([bomb], [row_of(bomb, 1000)])
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4 << 20))
    unknown_size = forge([streamed], [row_of(streamed, 1000)])
    tiny = compress(bytes(100))
    lying = bytearray(compress(random.Random(1).randbytes(100_000)))
    lying[5:9] = (1 << 31).to_bytes(4, "little")  # content size in the frame's header
    impossible = forge([tiny], [row_of(tiny, 1 << 31)])
    lie = forge([bytes(lying)], [row_of(bytes(lying), 1 << 31)])
    for data in (small_promise, unknown_size, impossible, lie):
        assert problems(data)
        assert peak_of(partial(problems, data), limit=1 << 20) <= 1 << 20
    assert f"states {1 << 31} bytes, but contains at most 100000" in str(problems(lie)[0])
    assert "is not possible" in str(problems(impossible)[0])
    assert "the index 1000" in str(problems(small_promise)[0])
    assert "an envelope states 0 bytes" in str(problems(honest_size)[0])


def test_a_block_for_which_there_is_no_memory_is_our_error(tmp_path: Path) -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(256 << 20))
    (tmp_path / "bomb.seg").write_bytes(forge([bomb], [row_of(bomb, 256 << 20)]))
    program = """
import resource, sys
from streamkeep.format.segment.segment import Segment
data = open(sys.argv[1], "rb").read()
segment = Segment.open(lambda at, size: data[at : at + size], len(data), "bomb")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
segment.block(0)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "bomb.seg")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "StoreError: block 0 of bomb: not enough memory for its 268,435,456" in ended.stderr


def test_blocks_with_what_does_not_belong_are_reported() -> None:
    def one(raw: bytes, **other: int) -> str:
        block = zstandard.ZstdCompressor().compress(raw)
        row = row_of(block, len(raw), **other)
        return "; ".join(map(str, problems(forge([block], [row]))))

    first, second = nodes_of([(1, 0, [b"f", b"v"])]) + nodes_of([(9, 0, [b"f", b"v"])])
    found = decode_envelope(first, "")
    assert one(first + second, nodes=2, entries=2) == ""
    assert "is out of order" in one(second + first, nodes=2, entries=2)
    assert "nodes, expected 1" in one(first + second, entries=2)
    assert "an envelope states" in one(first + second[:-1], nodes=2, entries=2)
    other = encode_envelope(8, 1, 0, 1, 2, b"", found.listpack, b"")
    assert "of another stream" in one(other, last_ms=1)
    marked = encode_envelope(NUMBER, 1, 0, 1, 2, b"", found.listpack, b"\x01")
    assert "has a record or bitmap" in one(marked, last_ms=1)
    (both,) = nodes_of([(1, 0, [b"f", b"v"]), (2, 0, [b"f", b"v"])])
    dead = tombstones.mark(decode_envelope(both, "").listpack, 1, 0, [(2, 0)], 0).data
    assert "tombstones" in one(encode_envelope(NUMBER, 1, 0, 1, 2, b"", dead, b""), last_ms=1)
    assert "not a zstd frame" in one_of(b"no frame at all", 60)


def one_of(block: bytes, raw_size: int) -> str:
    return str(problems(forge([block], [row_of(block, raw_size)]))[0])


@configured(200)
@given(st.binary(max_size=300))
@example(b"")
def test_any_bytes_are_reported(data: bytes) -> None:
    assert problems(data)
    footer = (1).to_bytes(4, "little") + b"\0" + (0x8F92EAB1).to_bytes(4, "little")
    assert problems(data + footer)


@configured(200)
@given(st.randoms(use_true_random=False), st.booleans())
def test_hostile_parts_with_right_checksums(rng: random.Random, damage_index: bool) -> None:
    """Damage under right checksums: only our errors come out, and nothing hangs."""
    raw = bytearray(b"".join(nodes_of(some(20))))
    rows_at = INDEX_HEADER.size - 8
    for _ in range(0 if damage_index else rng.randint(1, 3)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    block = zstandard.ZstdCompressor().compress(bytes(raw))
    if not damage_index and rng.random() < 0.5:
        hurt = bytearray(block)
        hurt[rng.randrange(len(hurt))] ^= 1 << rng.randrange(8)
        block = bytes(hurt)
    row = row_of(block, len(raw), nodes=3, entries=20, first_ms=1000, last_ms=1006, last_seq=1)
    data = bytearray(forge([block], [row]))
    if damage_index:
        index = Index(UUID, NUMBER, b"", [row]).encode()
        hurt = bytearray(index)
        at = rng.choice([rng.randrange(rows_at, INDEX_HEADER.size + INDEX_ROW.size)])
        hurt[at] = rng.randrange(256)
        hurt[-8:] = digest64(bytes(hurt[:-8]))
        trailer = opened(bytes(data)).trailer._replace(index_checksum=number_of(bytes(hurt[-8:])))
        data = bytearray(block + hurt + trailer.encode() + seek_table(trailer, [row]))
    problems(bytes(data))


# --- golden files -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "dictionary"])
def test_segments_of_version_1_are_read(name: str) -> None:
    data = (GOLDEN / f"{name}.seg").read_bytes()
    expected = json.loads((GOLDEN / "segments.json").read_text())
    segment = opened(data)
    assert list(segment.check()) == []
    found = [[ms, seq, [one.decode() for one in flat]] for ms, seq, flat in entries_of(segment)]
    assert found == expected["entries"]
    assert f"{segment.checksum:016x}" == expected["checksums"][name]
    assert (segment.dictionary() != b"") == (name == "dictionary")
