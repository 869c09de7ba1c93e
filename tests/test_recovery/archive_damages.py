"""Each kind of damage to the archive: recipes for the corpus."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from raw_store import Damage, RawStore, Recipe, put, raw_store, rows
from segments import archive, nodes_of, retire, some, write_file
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.tables.manifest import NEXT_SEQUENCE
from streamkeep.engine.txn.txn import NEXT_GARBAGE
from streamkeep.format.core import keys
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.node.tombstones import mark
from streamkeep.format.rows.records import encode_file_garbage, encode_number
from streamkeep.format.rows.retired import encode_former_name, former_name_key
from streamkeep.format.segment.manifest import (
    ADOPTED,
    SegmentRecord,
    decode_segment_record,
    encode_erasure,
)

ORDERS: Final = 1
FOLDER: Final = "archive"


def build(path: Path) -> None:
    """Write the store that is damaged: two segments, retired nodes, live ones, a group."""
    with Store(path, sync="none", clock=ManualClock(1000)) as store:
        number = archive(store, "orders", some(60, 1000), some(60, 3000), created_ms=1000)
        assert number == ORDERS
        retire(store, number, some(60, 5000))
        for ms in range(7000, 7200):
            store.xadd("orders", {"live": "x" * 100}, f"{ms}-0")
        store.xgroup_create("orders", "mail", 0)
        store.xreadgroup("mail", "ann", {"orders": ">"}, count=5)


def file(place: int, change: Callable[[Path], object]) -> Recipe:
    """Do something to one of the segment files."""

    def recipe(path: Path) -> None:
        change(sorted((path / FOLDER).rglob("*.seg"))[place])

    return recipe


def write_at(offset: int, data: bytes) -> Callable[[Path], None]:
    """Overwrite bytes of a file; a negative offset counts from its end."""

    def change(path: Path) -> None:
        old = bytearray(path.read_bytes())
        start = offset if offset >= 0 else len(old) + offset
        old[start : start + len(data)] = data
        path.write_bytes(old)

    return change


def middle_block(path: Path) -> None:
    """Damage a block in the middle of a file with several."""
    from streamkeep.engine.tables.segment_files import open_segment

    blocks = open_segment(path).index.blocks
    assert len(blocks) > 2
    write_at(blocks[1].offset + 15, b"damaged")(path)


def copy_over(path: Path) -> None:
    """Put the first file into the place of another."""
    shutil.copy(sorted(path.parent.glob("*.seg"))[0], path)


def rows_of(raw: RawStore) -> list[SegmentRecord]:
    return [
        decode_segment_record(key, raw.body(keys.SEGMENTS, key), "row")
        for key in raw.keys(keys.SEGMENTS)
    ]


def set_in_row(place: int, **values: Any) -> Damage:
    return lambda raw: put_row(raw, rows_of(raw)[place]._replace(**values))


def put_row(raw: RawStore, row: SegmentRecord) -> None:
    raw.put(keys.SEGMENTS, row.db_key(), row.encode())


def garbage(path: Callable[[RawStore], str]) -> Damage:
    def damage(raw: RawStore) -> None:
        raw.put(keys.GARBAGE, keys.pack_number(1), encode_file_garbage(path(raw)))
        raw.put(keys.META, NEXT_GARBAGE, encode_number(2))

    return damage


def one_more_segment(first_ms: int) -> Recipe:
    """Add a segment of 30 entries that begins at a time."""

    def recipe(path: Path) -> None:
        row = write_file(path / FOLDER, some(30, first_ms), number=ORDERS, file_number=77)
        with raw_store(path) as raw:
            put_row(raw, row._replace(sequence=70))
            raw.put(keys.META, NEXT_SEQUENCE, encode_number(80))

    return recipe


def another_retired(raw: RawStore) -> None:
    (other,) = nodes_of([(5000, 1, [b"f", b"v"])], number=ORDERS)
    raw.put_value(keys.RETIRED, keys.node_key(ORDERS, 5000, 1), other)


def flipped_retired(raw: RawStore) -> None:
    key = raw.keys(keys.RETIRED)[-1]
    value = bytearray(raw.value(keys.RETIRED, key))
    value[-1] ^= 1
    value[130] ^= 0xFF
    raw.put_value(keys.RETIRED, key, bytes(value))


def retired_elsewhere(raw: RawStore) -> None:
    key = raw.keys(keys.RETIRED)[-1]
    found = decode_envelope(raw.value(keys.RETIRED, key), "")
    other = encode_envelope(ORDERS, found.ms, found.seq + 1, 1, 1, b"", found.listpack, b"")
    raw.put_value(keys.RETIRED, key, other)


def retired_and_deleted(raw: RawStore) -> None:
    key = raw.keys(keys.RETIRED)[-1]
    found = decode_envelope(raw.value(keys.RETIRED, key), "")
    ids = [entry[:2] for entry in some(60, 5000)]
    dead = mark(found.listpack, found.ms, found.seq, ids, 0).data
    value = encode_envelope(ORDERS, found.ms, found.seq, 1, 1, b"", dead, b"")
    raw.put_value(keys.RETIRED, key, value)


def same_file(raw: RawStore) -> None:
    """Have another stream name the file of the first segment."""
    adopted = rows_of(raw)[0]._replace(stream_number=ORDERS + 1, origin=ADOPTED, sequence=9)
    put_row(raw, adopted)
    raw.put(keys.META, NEXT_SEQUENCE, encode_number(10))


def erased(raw: RawStore) -> None:
    for ms, seq in ((1000, 1), (1019, 2), (1019, 3), (3005, 0), (9000, 0)):  # three are there
        raw.put(keys.ERASURES, keys.node_key(ORDERS, ms, seq), encode_erasure(5))


CASES: Final[dict[str, Recipe]] = {
    "SK001-segment": rows(put(keys.SEGMENTS, keys.node_key(ORDERS, 1000, 0), b"short")),
    "SK001-erasure": rows(put(keys.ERASURES, keys.node_key(ORDERS, 1000, 0), b"short")),
    "SK001-garbage": rows(garbage(lambda raw: "../data.mdb")),
    "SK014-sequence": rows(put(keys.META, NEXT_SEQUENCE, encode_number(2))),
    "SK003-no-data-file": lambda path: (path / "data.mdb").unlink(),
    "SK301-missing": file(0, Path.unlink),
    "SK301-no-folder": lambda path: shutil.rmtree(path / FOLDER),
    "SK302-header": file(0, write_at(0, bytes(64))),
    "SK302-block": file(0, middle_block),
    "SK302-cut-off": file(1, lambda path: path.write_bytes(path.read_bytes()[:-100])),
    "SK302-trailer": file(1, write_at(-9, bytes(9))),
    "SK302-empty": file(0, lambda path: path.write_bytes(b"")),
    "SK303-other-file": file(1, copy_over),
    "SK304-overlap": one_more_segment(1010),
    "SK305-retired": one_more_segment(5010),
    "SK305-live": one_more_segment(7100),
    "SK305-before-retired": one_more_segment(4995),
    "SK305-before-live": one_more_segment(6995),
    "SK305-two-retired": rows(another_retired),
    "SK306-bytes": rows(flipped_retired),
    "SK306-elsewhere": rows(retired_elsewhere),
    "SK306-deleted": rows(retired_and_deleted),
    "SK306-name": rows(
        lambda raw: raw.put_value(
            keys.RETIRED, former_name_key(ORDERS), encode_former_name(ORDERS + 1, b"orders")
        )
    ),
    "SK307-counts": rows(set_in_row(0, entries=61, nodes=5)),
    "SK308-sequence": rows(set_in_row(1, sequence=1)),
    "SK309-same-file": rows(same_file),
    "SK309-never-was": rows(put(keys.ERASURES, keys.node_key(9, 1, 1), encode_erasure(5))),
    "SK310-erased": rows(erased),
    "SK311-no-row": file(0, lambda path: shutil.copy(path, path.with_name("copy.seg"))),
    "SK312-unfinished": file(0, lambda path: path.with_name("1.seg.tmp").write_bytes(b"x")),
    "SK313-named": rows(garbage(lambda raw: rows_of(raw)[0].path)),
}
