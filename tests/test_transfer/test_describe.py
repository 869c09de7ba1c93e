"""Annotated bytes: every byte is described, whole or damaged, and nothing is raised."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import NOW_MS
from model.profile import configured
from raw_store import raw_store
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, with_checksum
from streamkeep.format.core.keys import (
    CONSUMERS,
    GARBAGE,
    GROUPS,
    IDEMPOTENCY,
    KEYS,
    META,
    NODES,
    PEL,
    PEL_ORDER,
    PRODUCERS,
    STREAMS,
    TABLES,
    pack_number,
)
from streamkeep.format.journal.journal import (
    FILE_HEADER,
    encode_record,
    first_chain,
    record_checksum,
)
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.format.node.envelope import encode_envelope
from streamkeep.format.rows.group_records import GROUP_RECORD
from streamkeep.format.rows.meta_rows import META_BACKUP, BackupRow
from streamkeep.format.rows.nacks import NACK
from streamkeep.format.rows.records import StreamRecord, encode_file_garbage
from streamkeep.format.rows.retention import Retention, with_retention
from streamkeep.format.segment.segment import Segment
from streamkeep.transfer.describe import (
    Piece,
    checkpoint_file,
    describe_row,
    envelope,
    journal_file,
    pieces_of,
    segment_end,
)
from tiers import daily_or_all

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"


def node_envelope() -> bytes:
    """Return an envelope with a node of two entries, the second with fields of its own."""
    builder = NodeBuilder(1526919030474, 55, [b"name", b"n"])
    builder.append(1526919030474, 55, [b"name", b"Sara", b"n", b"7"])
    builder.append(1526919030500, 0, [b"msg", b"hi"])
    return encode_envelope(5, 1526919030474, 55, 1, 9, b"", builder.listpack(), b"\x02")


def covered(pieces: list[Piece]) -> bytes:
    """Return the bytes of pieces, which must follow each other."""
    at = pieces[0].offset if pieces else 0
    for piece in pieces:
        assert piece.offset == at, piece
        at += len(piece.data)
    return b"".join(piece.data for piece in pieces)


def is_wrong(pieces: list[Piece]) -> bool:
    return any(piece.name == "damage" or piece.value.startswith("WRONG") for piece in pieces)


def value_of(pieces: list[Piece], name: str) -> str:
    return next(piece.value for piece in pieces if piece.name == name)


def test_a_node_is_told_field_by_field() -> None:
    data = node_envelope()
    pieces = list(pieces_of(envelope, data))
    assert covered(pieces) == data
    assert value_of(pieces, "magic").startswith("'SKN'")
    assert value_of(pieces, "stream_number").split()[0] == "5"
    assert value_of(pieces, "commit_number").split()[0] == "9"
    assert value_of(pieces, "length").startswith(str(len(data)))
    assert value_of(pieces, "master count") == "2"
    assert value_of(pieces, "master field 0") == "'name'"
    assert value_of(pieces, "slot 0 value") == "'Sara'  of 'name'"
    assert value_of(pieces, "slot 1 flags") == "0  own fields"
    assert value_of(pieces, "slot 1 seq-diff") == "-55  ID 1526919030500-0"
    assert value_of(pieces, "slot 1 field") == "'msg'"
    assert value_of(pieces, "slot 1 lp-count") == "6"
    assert value_of(pieces, "trimmed") == "slots 1"
    assert value_of(pieces, "checksum") == "right"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[int, bytes, bytes]]]:
    """All rows of a store with something in most tables."""
    path = tmp_path_factory.mktemp("describe") / "store"
    with Store(path, sync="none", clock=ManualClock(NOW_MS)) as store:
        for number in range(400):
            store.xadd("k", {"n": number, "pad": "x" * (number % 90)}, id=f"{number + 1}-0")
        store.xdel("k", "3-0", "399-0")
        store.xtrim("k", maxlen=390, approximate=False)
        store.xgroup_create("k", "g", 0)
        store.xreadgroup("g", "c", {"k": ">"}, count=100)
        store.xgroup_create("k", "few", 0)
        store.xreadgroup("few", b"\xff", {"k": ">"}, count=3)
        store.xnack("k", "few", "FAIL", "13-0")
        store.xadd("k", {"a": 1}, idmp=("p", "m"))
        store.xadd("x" * 600, {"long": "y" * 9000})
    with raw_store(path) as raw:
        yield [
            (table, db_key, raw.value(table, db_key))
            for table in TABLES
            for db_key in raw.keys(table)
        ]


def test_every_row_is_told_to_the_last_byte(rows: list[tuple[int, bytes, bytes]]) -> None:
    tables = {table for table, _, _ in rows}
    wanted = {META, KEYS, STREAMS, NODES, GROUPS, CONSUMERS, PEL, PEL_ORDER, PRODUCERS, IDEMPOTENCY}
    assert wanted <= tables
    for table, db_key, value in rows:
        pieces = list(describe_row(table, db_key, value))
        assert covered(pieces) == value, TABLES[table].name
        assert [piece for piece in pieces if piece.name == "damage"] == []
        assert value_of(pieces, "checksum") == "right"


def test_a_row_tells_what_its_codec_reads(rows: list[tuple[int, bytes, bytes]]) -> None:
    table, db_key, value = next(row for row in rows if row[0] == STREAMS)
    pieces = list(describe_row(table, db_key, value))
    assert value_of(pieces, "entries_added").split()[0] == "401"
    assert value_of(pieces, "section tag").split()[0] == "1"
    assert value_of(pieces, "duration").split()[0] == "100"
    table, db_key, value = next(row for row in rows if row[0] == GROUPS and row[1].endswith(b"few"))
    pieces = list(describe_row(table, db_key, value))
    assert value_of(pieces, "name") == "'few'"
    assert value_of(pieces, "NACK 2 delivery_count").split()[0] == "1"


def test_rows_that_stores_seldom_have_are_told_by_their_schemas() -> None:
    key = pack_number(1)
    backup_row = BackupRow(1, 2, 3, 4).encode()
    retention = with_retention(b"", Retention(maxlen=5))
    record = StreamRecord(4096, 100)
    record.extension = retention + b"\x09\x00\x02ab"
    stream = encode_envelope(1, 0, 0, 1, 1, record.encode(), b"", b"")
    for table, db_key, value, name, told in (
        (GARBAGE, key, encode_file_garbage("a/b.seg"), "path", "'a/b.seg'"),
        (META, META_BACKUP, backup_row, "own_commit", "4  commit that wrote this row"),
        (STREAMS, key, stream, "maxlen", "5  most live entries"),
        (STREAMS, key, stream, "section", "not annotated"),
    ):
        row = value if table == STREAMS else with_checksum(table, db_key, value)
        pieces = describe_row(table, db_key, row)
        assert covered(pieces) == row
        assert not is_wrong(pieces), pieces
        assert value_of(pieces, name).startswith(told)


def test_damage_is_told_where_it_is(rows: list[tuple[int, bytes, bytes]]) -> None:
    for table, db_key, value in rows[::7]:
        for at in range(0, len(value), max(1, len(value) // 40)):
            bad = bytearray(value)
            bad[at] ^= 0x41
            pieces = list(describe_row(table, db_key, bytes(bad)))
            assert is_wrong(pieces), (TABLES[table].name, at)
        for size in range(0, len(value), max(1, len(value) // 20)):
            assert covered(list(describe_row(table, db_key, value[:size]))) == value[:size]


def test_any_bytes_are_told_once_each(rows: list[tuple[int, bytes, bytes]]) -> None:
    """The bytes of a row, damaged, under any table and key, and as a file: each has one piece."""
    others = ((journal_file, 0), (checkpoint_file, 0), (segment_end, 7))
    for seed in range(daily_or_all(50, 400)):
        rng = random.Random(seed)
        _, db_key, value = rng.choice(rows)
        at = rng.randrange(len(value))
        data = value[:at] + rng.randbytes(rng.randrange(30)) + value[at + rng.randrange(5) :]
        table = rng.choice(list(TABLES))
        db_key = rng.choice([db_key, b"", b"\0", db_key[:5]])
        assert covered(list(describe_row(table, db_key, data))) == data, seed
        for walk, base in others:
            pieces = list(pieces_of(walk, data, base))
            assert covered(pieces) == data, seed
            assert is_wrong(pieces) or not data, (seed, walk, "it is a row, and no such file")


def test_a_group_whose_entries_are_cut_off_is_told_to_its_end() -> None:
    """Damage says once what is missing, not a line for each entry that is not there."""
    for missing in (0, 1, 40):
        row = GROUP_RECORD.struct.pack(1, 2, 0, 0, 3, 0, 4, 5, 6, 1, 3 * NACK.size)
        row += bytes(3 * NACK.size - missing) + bytes(ROW_CHECKSUM_SIZE)
        pieces = list(describe_row(GROUPS, b"", row))
        assert covered(pieces) == row
        assert len([one for one in pieces if one.name == "damage"]) == min(missing, 1)


@given(st.data())
@configured(200)
def test_a_node_with_any_damage_is_told_to_the_last_byte(draw: st.DataObject) -> None:
    data = bytearray(node_envelope())
    for _ in range(draw.draw(st.integers(1, 5))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    pieces = list(pieces_of(envelope, bytes(data)))
    assert covered(pieces) == bytes(data)
    assert is_wrong(pieces) == (bytes(data) != node_envelope())


def test_a_journal_file_and_the_steady_points(open_store: Callable[..., Store]) -> None:
    store = open_store()
    store.xadd("k", {"a": 1}, id="1-0")
    for number in range(60):
        store.xadd("k", {"a": number, "pad": "x" * 40}, id=f"{number + 2}-0")
    store.xgroup_create("k", "g", 0)
    store.xgroup_destroy("k", "g")
    (path,) = (store.path / "journal").glob("*.skj")
    data = path.read_bytes()
    pieces = list(pieces_of(journal_file, data))
    assert covered(pieces) == data
    kinds = {piece.name.split()[-1] for piece in pieces if piece.name.startswith("record")}
    assert {"PUT", "DELETE", "EXTEND", "checksum", "length", "number"} <= kinds
    assert pieces[-1].name == "rest"
    bad = bytearray(data)
    bad[1000] ^= 1
    damaged = list(pieces_of(journal_file, bytes(bad)))
    assert covered(damaged) == bytes(bad)
    assert damaged[-1].value.startswith("no valid record")
    header, body = data[: FILE_HEADER.size], b"\xff" * 8
    record = encode_record(body, record_checksum(body, first_chain(header)))
    pieces = list(pieces_of(journal_file, header + record))
    assert value_of(pieces, "record 0 commit number") == str((1 << 64) - 1)
    data = (store.path / "steady").read_bytes()
    pieces = list(pieces_of(checkpoint_file, data))
    assert covered(pieces) == data
    assert value_of(pieces, "slot 0 store_uuid")


def test_the_end_of_a_segment() -> None:
    for name in ("plain.seg", "dictionary.seg"):
        data = (GOLDEN / name).read_bytes()

        def read_at(at: int, size: int, data: bytes = data) -> bytes:
            return data[at : at + size]

        segment = Segment.open(read_at, len(data), name)
        at = segment.trailer.blocks_size + segment.trailer.dictionary_size
        pieces = list(pieces_of(segment_end, data[at:], at))
        assert covered(pieces) == data[at:]
        assert not [piece for piece in pieces if piece.name == "damage"]
        assert value_of(pieces, "checksum") == "right"
        assert value_of(pieces, "entries").split()[0] == str(segment.trailer.entries)
        bad = data[at:-40] + b"\x00" * 40
        assert covered(list(pieces_of(segment_end, bad, at))) == bad
