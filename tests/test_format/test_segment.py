"""Archive segments: round trips, what history keeps of a node, and damage of every kind."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from model.profile import configured
from patience import PATIENCE_S, peak_of
from segments import TOP, UUID, Pairs, entries_of, nodes_of, opened, some, write
from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import CorruptionError, FormatVersionError
from streamkeep.format.node import check, node, ranges, tombstones
from streamkeep.format.node.builder import NodeBuilder, encode_nodes
from streamkeep.format.node.dictionary import choose_dictionary
from streamkeep.format.node.envelope import (
    PAGE_LISTPACK,
    decode_envelope,
    encode_envelope,
    set_trimmed,
)
from streamkeep.format.rows.records import is_safe_path
from streamkeep.format.segment.index import (
    INDEX_HEADER,
    INDEX_ROW,
    TRAILER,
    Index,
    max_content,
    number_of,
    seek_table,
)
from streamkeep.format.segment.remains import remains
from streamkeep.format.segment.segment import segment_path
from streamkeep.format.segment.writer import SegmentWriter
from test_format.made_journal import flipped
from test_format.made_segments import NUMBER, forge, ids, problems, row_of, trained

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"
pairs = st.lists(st.binary(max_size=6), min_size=2, max_size=6).map(lambda x: x[: len(x) // 2 * 2])
entry_lists = st.dictionaries(ids, pairs, min_size=1, max_size=30).map(
    lambda found: [(*one, fields) for one, fields in sorted(found.items())]
)


@given(entry_lists, st.integers(30, 300), st.integers(1, 2000), st.integers(-3, 6), st.sets(ids))
def test_what_is_written_is_read_back(
    entries: list[Pairs], node_size: int, block_bytes: int, level: int, others: set[tuple[int, int]]
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
    there = {entry[:2] for entry in entries}
    assert segment.those_of(sorted(there | others)) == sorted(there)
    assert segment.those_of(sorted(others)) == sorted(there & others)


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
        bad = flipped(data, bit)
        if not problems(bad):
            harmless.append(bit)
    assert harmless == []


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


# --- the index of a segment: read in parts, lies, and trailers that lie ---------------------------


def test_the_index_of_a_long_segment_is_read_in_parts() -> None:
    segment = opened(write(nodes_of(some(3000), 100), block_bytes=1))
    assert segment.trailer.index_size > 32 << 10
    assert entries_of(segment) == some(3000)


@pytest.mark.parametrize(
    "change",
    [
        {"entries": 5},
        {"nodes": 2, "entries": 3},
        {"first_ms": 2},
        {"last_ms": 1, "last_seq": 0},
        {"last_ms": 90},
        {"offset": 1},
        {"raw_size": 999},
        {"size": 10},
        {"nodes": 0},
        {"first_ms": 95},
    ],
)
def test_an_index_that_lies_with_right_checksums_is_reported(change: dict[str, int]) -> None:
    raw = b"".join(nodes_of([(1, 0, [b"f", b"v"]), (9, 0, [b"f", b"w"]), (9, 1, [b"f", b"x"])]))
    block = zstandard.ZstdCompressor(write_checksum=True).compress(raw)
    good = row_of(block, len(raw), entries=3, last_seq=1)
    assert problems(forge([block], [good])) == []
    assert problems(forge([block], [good._replace(**change)]))


def test_trailers_that_lie_with_right_checksums_are_reported() -> None:
    raw = b"".join(nodes_of([(1, 0, [b"f", b"v"])]))
    block = zstandard.ZstdCompressor().compress(raw)
    row = row_of(block, len(raw), last_ms=1)
    assert problems(forge([block], [row])) == []
    for name in ("entries", "nodes", "raw_size", "first_ms", "last_seq", "index_size"):
        assert problems(forge([block], [row], {name: 77}))
    for name in ("blocks_size", "dictionary_size", "index_checksum"):
        assert problems(forge([block], [row], {name: 3}))
    twice = [row, row._replace(offset=len(block))]
    assert problems(forge([block, block], twice))


# --- writing segments: what is refused, and what adds nothing -------------------------------------


def test_a_node_of_which_nothing_is_left_adds_nothing() -> None:
    (data,) = nodes_of([(1, 0, [b"f", b"v"])])
    found = decode_envelope(data, "")
    empty = tombstones.mark(found.listpack, 1, 0, [(1, 0)], 0).data
    blank = encode_envelope(NUMBER, 1, 0, 1, 2, b"", empty, b"")
    writer = SegmentWriter(Index(UUID, NUMBER, b"", []), created_ms=0, epoch=0, file_number=0)
    assert writer.add(blank, "node") == b""
    assert (writer.first_id, writer.last_id, writer.entries) == (None, None, 0)
    with pytest.raises(ValueError, match="at least one entry"):
        writer.finish()


def test_nodes_that_do_not_belong_are_refused_and_the_writer_goes_on() -> None:
    first, second, *_ = nodes_of(some(40))
    writer = SegmentWriter(Index(UUID, NUMBER, b"", []), created_ms=0, epoch=0, file_number=0)
    data = writer.add(first, "node")
    for bad in (first, first[:-1], encode_envelope(8, 9999, 0, 1, 2, b"", b"", b"")):
        with pytest.raises(CorruptionError):
            writer.add(bad, "node")
    data += writer.add(second, "node")
    segment = opened(data + writer.finish())
    assert list(segment.check()) == []
    assert segment.trailer.nodes == 2


def test_a_dictionary_goes_with_the_segment() -> None:
    envelopes = nodes_of(some(3000), 400)
    dictionary = trained(4096, envelopes)
    plain = write(envelopes, block_bytes=800)
    data = write(envelopes, block_bytes=800, dictionary=dictionary)
    segment = opened(data)
    assert segment.dictionary() == dictionary
    assert list(segment.check()) == []
    assert entries_of(segment) == some(3000)
    assert len(data) < len(plain)


# --- frames of zstd: the file for zstd's own tools, and frames that lie about their content -------


def test_zstd_of_the_system_reads_a_segment(tmp_path: Path) -> None:
    tool = shutil.which("zstd")
    if tool is None:
        pytest.skip("no zstd command")
    envelopes = nodes_of(some(500))
    path = tmp_path / "one.zst"
    path.write_bytes(write(envelopes))
    done = subprocess.run([tool, "-dc", path], capture_output=True, check=True, timeout=PATIENCE_S)
    assert done.stdout == b"".join(envelopes)
    dictionary = trained(4096, nodes_of(some(3000), 400))
    path.write_bytes(write(envelopes, dictionary=dictionary))
    (tmp_path / "dictionary").write_bytes(dictionary)
    command = [tool, "-dc", "-D", str(tmp_path / "dictionary"), str(path)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    assert done.stdout == b"".join(envelopes)


def test_the_file_is_a_zstd_stream_with_a_seek_table_of_all_its_frames() -> None:
    envelopes = nodes_of(some(200))
    data = write(envelopes)
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
    assert reader.read() == b"".join(envelopes)
    count = int.from_bytes(data[-9:-5], "little")
    rows = data[-9 - 8 * count : -9]
    sizes = [int.from_bytes(rows[i : i + 4], "little") for i in range(0, len(rows), 8)]
    assert sum(sizes) + 8 + 8 * count + 9 == len(data)


@pytest.mark.parametrize(
    ("size", "level"),
    [
        *((size, level) for size in (0, 1, 1000, 128 << 10, (128 << 10) + 1) for level in (-1, 3)),
        *((1_000_000, 1), (1000, 19), ((128 << 10) + 1, 19)),
    ],
)
def test_what_a_frame_may_hold_is_known_from_its_blocks(size: int, level: int) -> None:
    text = b"".join(b"%d" % number for number in range(size // 4))
    noise = random.Random(1).randbytes(size)
    compress = zstandard.ZstdCompressor(level=level, write_checksum=True).compress
    for raw in (bytes(size), text, noise):
        assert max_content(compress(raw)) >= len(raw)
    assert max_content(compress(noise)) == size  # its blocks are as they were


# --- what is found of a damaged segment is what was in it, whatever the damage --------------------

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


# --- dictionaries of segments: taken where they pay, left where not, without what was deleted -----

LEVEL, BLOCK = 3, 256 << 10


def nodes_of_bodies(bodies: list[bytes]) -> list[bytes]:
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
    nodes = nodes_of_bodies(requests(20_000, 1))
    assert choose(nodes, 64 << 20) is not None
    assert choose(nodes, 1 << 20) is None  # it would be a good part of so small a segment


def test_no_dictionary_is_chosen_where_it_does_not_pay() -> None:
    rng = random.Random(1)
    assert choose(nodes_of_bodies([rng.randbytes(100) for _ in range(3_000)]), 64 << 20) is None
    assert choose(nodes_of_bodies([b"%d" % n for n in range(20_000)]), 64 << 20) is None
    assert choose(nodes_of_bodies([b"x"] * 100), 64 << 20) is None
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
