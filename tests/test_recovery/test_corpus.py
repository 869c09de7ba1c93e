"""The damage corpus: for every code a store that has this damage, and what becomes of it.

A case is a recipe here, in `test_corpus_archive`, or in the tests of groups and of messages. The
files below `tests/golden/damage/` say what fsck finds in the damaged store and what repair then
does and loses (`damage_reports`). A second fsck, of the repaired store, finds nothing, and a second
repair changes nothing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

import hostile
from damage_reports import compare, families, read
from inside import checkpoint_now, flush_each_commit
from raw_store import RawStore, raw_store
from specimens import shown
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint.checkpoint_file import position_of
from streamkeep.engine.crash_recovery.stored_version import META_FORMAT
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, Reader
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core import keys
from streamkeep.format.journal.checkpoint import SLOT_SIZE, decode_slot
from streamkeep.format.lmdb_file.lmdb_pages import MAIN_AT
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.rows.backup import META_STANDBY, StandbyRow, decode_standby
from streamkeep.format.rows.nacks import NACK_SIZE
from streamkeep.format.rows.records import (
    STREAM_NODES,
    StreamRecord,
    decode_stream_record,
    encode_garbage,
    encode_key_row,
)
from streamkeep.recovery.fsck.findings import CATALOGUE
from streamkeep.recovery.fsck.source import open_source, read_metas
from streamkeep.recovery.salvage.repair import repair
from test_format.made_nodes import with_counts
from test_recovery import test_groups as of_groups
from test_recovery import test_messages as of_messages
from tiers import slow_but

PAGE: Final = 4096
ORDERS, MAILS = 1, 2  # numbers of the streams

Recipe = Callable[[Path], None]


def build(path: Path) -> None:
    """Write the store that is damaged: two streams of some nodes, and a group."""
    with Store(path, sync="none", clock=ManualClock(1000), node_max_entries=20) as store:
        flush_each_commit(store)
        for name in ("orders", "mails"):
            ids = [f"1-{number}" for number in range(90)]
            store.xadd_many(name, [{"n": str(number)} for number in range(90)], ids=ids)
            store.xdel(name, "1-7", "1-8", "1-85")
            store.xtrim(name, maxlen=80, approximate=False)
        store.xgroup_create("orders", "mail", 0)
        store.xreadgroup("mail", "ann", {"orders": ">"}, count=5)


# --- recipes ------------------------------------------------------------------------------------


def rows(change: Callable[[RawStore], None]) -> Recipe:
    """Change rows of LMDB, with checksums that hold."""

    def recipe(path: Path) -> None:
        with raw_store(path) as raw:
            change(raw)

    return recipe


def record(**values: int) -> Recipe:
    """Set fields of the record of `orders`."""

    def change(raw: RawStore) -> None:
        old = decode_envelope(raw.value(keys.STREAMS, keys.pack_number(ORDERS)), "test")
        new: StreamRecord = decode_stream_record(old.record, "test")
        for name, value in values.items():
            assert getattr(new, name) != value
            setattr(new, name, value)
        put_stream(raw, old, new.encode())

    return rows(change)


def put_stream(raw: RawStore, old: Any, record_bytes: bytes) -> None:
    value = encode_envelope(
        old.number, old.ms, old.seq, 1, old.commit_number, record_bytes, old.listpack, old.trimmed
    )
    raw.put_value(keys.STREAMS, keys.pack_number(old.number), value)


def put_node(raw: RawStore, db_key: bytes, number: int, ms: int, seq: int, **more: Any) -> None:
    data = more.get("data") or encode_nodes([(ms, seq, [b"f", b"v"])], 4000)[0][2]
    value = encode_envelope(number, ms, seq, 1, 1, b"", data, more.get("trimmed", b""))
    raw.put_value(keys.NODES, db_key, value)


def at(file: str, offset: int, data: bytes) -> Recipe:
    """Write bytes into a file."""

    def recipe(path: Path) -> None:
        with (path / file).open("r+b") as stream:
            stream.seek(offset)
            stream.write(data)

    return recipe


def page_of(path: Path, table: int) -> int:
    """Return the first leaf of a table."""
    with open_source(path) as source:
        assert source.tables is not None
        return next(source.tables.tree(table).leaves()).number


def zero_leaf(table: int) -> Recipe:
    def recipe(path: Path) -> None:
        at("data.mdb", page_of(path, table) * PAGE, bytes(PAGE))(path)

    return recipe


def first_node(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change the bytes of a macro node in place."""
    with open_source(path) as source:
        assert source.tables is not None
        row = next(source.tables.walk(keys.NODES))
        page, index = row.leaf, row.at
    assert page is not None
    data = bytearray((path / "data.mdb").read_bytes())
    start = page.number * PAGE + page.places[index + 1]
    node = data[start : start + page.sizes[index + 1]]
    change(node)
    data[start : start + len(node)] = node
    (path / "data.mdb").write_bytes(data)


def one_byte(path: Path) -> None:
    def change(node: bytearray) -> None:
        node[100] ^= 0x55

    first_node(path, change)


def two_places(path: Path) -> None:
    def change(node: bytearray) -> None:
        node[150] ^= 0xFF
        node[220] ^= 0xFF

    first_node(path, change)


def used_twice(path: Path) -> None:
    """Let the record of one table lead to the root of another."""
    with open_source(path) as source:
        assert source.tables is not None
        garbage = source.tables.main.find(b"keys")[0]
        nodes = source.tables.main.find(b"groups")[0]
        page = next(source.tables.main.leaves())
    assert garbage is not None
    assert nodes is not None
    data = bytearray((path / "data.mdb").read_bytes())
    place = data.index(nodes, page.number * PAGE)
    data[place : place + len(nodes)] = garbage
    (path / "data.mdb").write_bytes(data)


def lost_pages(path: Path) -> None:
    """Let the newest meta page speak of one page more than there is."""
    metas, _ = read_metas(Folder(path))
    newest = metas[-1]
    place = newest.commit_number % 2 * PAGE
    at("data.mdb", place + 136, (newest.last_page + 1).to_bytes(8, "little"))(path)
    with (path / "data.mdb").open("ab") as file:
        file.truncate((newest.last_page + 2) * PAGE)


def counter_of_tree(path: Path) -> None:
    metas, _ = read_metas(Folder(path))
    place = metas[-1].commit_number % 2 * PAGE
    at("data.mdb", place + MAIN_AT + 32, (99).to_bytes(8, "little"))(path)


def unknown_table(path: Path) -> None:
    with lmdb.open(str(path), max_dbs=40) as raw, raw.begin(write=True) as txn:
        raw.open_db(b"surprise", txn)


def no_table(name: bytes) -> Recipe:
    def recipe(path: Path) -> None:
        with lmdb.open(str(path), max_dbs=40) as raw:
            table = raw.open_db(name, create=False)
            with raw.begin(write=True) as txn:
                txn.drop(table)

    return recipe


def other_boot(path: Path) -> None:
    """As after a power loss: commits after the checkpoint, and another boot."""
    slots = (path / "steady").read_bytes()
    with Store(path, sync="none", clock=ManualClock(2000)) as store:
        flush_each_commit(store)
        store.xadd("orders", {"late": "1"}, id="2-0")
        shutil.copytree(path / JOURNAL_FOLDER, path.with_name("journal"))
    newest = max(
        (slot for place in (0, 1) if (slot := decode_slot(slots[place * SLOT_SIZE :]))),
        key=lambda slot: slot.commit_number,
    )
    slot = newest._replace(boot_id=b"another boot....")
    (path / "steady").write_bytes(slot.encode().ljust(2 * SLOT_SIZE, b"\0"))
    (path / JOURNAL_FOLDER / "head").unlink(missing_ok=True)


def killed(path: Path) -> None:
    """Three commits after the checkpoint, which LMDB has, then a kill."""
    with Store(path, sync="none", clock=ManualClock(2000)) as store:
        flush_each_commit(store)
        checkpoint_now(store)
        shutil.copyfile(path / "data.mdb", path.with_name("old.mdb"))
        for number in range(3):
            store.xadd("orders", {"late": str(number)}, id=f"2-{number}")
        shutil.copytree(path, path.with_name("killed"))
    shutil.rmtree(path)
    path.with_name("killed").rename(path)


def lost_pages_of_commits(path: Path) -> None:
    """The disk has the journal of three commits, and of `data.mdb` what was before."""
    killed(path)
    path.with_name("old.mdb").rename(path / "data.mdb")


def damage_in_journal(path: Path) -> None:
    """The second record after the checkpoint has a wrong bit; the one after it is sound."""
    killed(path)
    data = (path / "steady").read_bytes()
    slots = [slot for at in (0, SLOT_SIZE) if (slot := decode_slot(data[at:])) is not None]
    slot = max(slots, key=lambda one: one.commit_number)
    reader = Reader(Folder(path / JOURNAL_FOLDER), slot, position_of(slot))
    assert reader.next() is not None
    file, offset = reader.position.file_number, reader.position.offset
    name = f"{JOURNAL_FOLDER}/{file:012d}.skj"
    byte = (path / name).read_bytes()[offset + 30]
    at(name, offset + 30, bytes([byte ^ 4]))(path)


def gap_in_journal(path: Path) -> None:
    """The same, and LMDB has none of these commits."""
    damage_in_journal(path)
    path.with_name("old.mdb").rename(path / "data.mdb")


def other_row(path: Path) -> None:
    """LMDB has another row of a stream than the journal makes."""
    killed(path)
    record(max_deleted_seq=3)(path)


def checkpoint_of_other(path: Path) -> None:
    data = (path / "steady").read_bytes()
    slots = [decode_slot(data[place * SLOT_SIZE :]) for place in (0, 1)]
    new = b"".join(
        data[place * SLOT_SIZE : (place + 1) * SLOT_SIZE]
        if slot is None
        else slot._replace(store_uuid=bytes(16)).encode().ljust(SLOT_SIZE, b"\0")
        for place, slot in enumerate(slots)
    )
    (path / "steady").write_bytes(new)


def one_slot(path: Path) -> None:
    data = (path / "steady").read_bytes()
    whole = [place for place in (0, 1) if decode_slot(data[place * SLOT_SIZE :]) is not None]
    at("steady", (1 - whole[-1]) * SLOT_SIZE, b"SKP\1 torn")(path)


def meta_pages(path: Path) -> None:
    at("data.mdb", 0, bytes(200))(path)
    at("data.mdb", PAGE, bytes(200))(path)


def stray_file(path: Path) -> None:
    (path / "notes.txt").write_text("mine")


def all_metas(path: Path) -> None:
    meta_pages(path)
    at("steady", 0, bytes(2 * SLOT_SIZE))(path)


CASES: Final[dict[str, Recipe]] = {
    "SK001-row": rows(lambda raw: raw.flip_bit(keys.KEYS, keys.name_key(b"", b"orders"))),
    "SK001-stream": rows(
        lambda raw: raw.put_value(keys.STREAMS, keys.pack_number(ORDERS), b"nothing")
    ),
    "SK002-meta": rows(lambda raw: raw.delete(keys.META, META_FORMAT)),
    "SK003-both": meta_pages,
    "SK003-and-steady": all_metas,
    "SK004-nodes": zero_leaf(keys.NODES),
    "SK004-streams": zero_leaf(keys.STREAMS),
    "SK004-keys": zero_leaf(keys.KEYS),
    "SK005-used-twice": used_twice,
    "SK006-lost-page": lost_pages,
    "SK007-counter": counter_of_tree,
    "SK008-unknown": unknown_table,
    "SK009-nodes": no_table(b"nodes"),
    "SK009-groups": no_table(b"groups"),
    "SK010-other-name": rows(
        lambda raw: raw.move(keys.KEYS, keys.name_key(b"", b"orders"), keys.name_key(b"", b"other"))
    ),
    "SK011-two-names": rows(
        lambda raw: raw.put(keys.KEYS, keys.name_key(b"", b"copy"), encode_key_row(ORDERS, b"copy"))
    ),
    "SK012-no-record": rows(lambda raw: raw.delete(keys.STREAMS, keys.pack_number(ORDERS))),
    "SK013-no-name": rows(lambda raw: raw.delete(keys.KEYS, keys.name_key(b"", b"orders"))),
    "SK014-counter": rows(lambda raw: raw.put(keys.META, b"next_stream_number", bytes(7) + b"\1")),
    "SK015-garbage": rows(
        lambda raw: raw.put(keys.GARBAGE, keys.pack_number(1), encode_garbage(STREAM_NODES, ORDERS))
    ),
    "SK016-no-second-name": rows(lambda raw: raw.delete(keys.NAMES, keys.pack_number(MAILS))),
    "SK016-other-name": rows(lambda raw: raw.put(keys.NAMES, keys.pack_number(MAILS), b"letters")),
    "SK020-no-point": at("steady", 0, bytes(2 * SLOT_SIZE)),
    "SK021-one-slot": one_slot,
    "SK022-torn": other_boot,
    "SK023-other-store": checkpoint_of_other,
    "SK024-gap": gap_in_journal,
    "SK025-stray": stray_file,
    "SK026-lost-pages": lost_pages_of_commits,
    "SK027-damaged-record": damage_in_journal,
    "SK028-other-row": other_row,
    "SK101-length": record(length=7),
    "SK102-first": record(first_ms=0),
    "SK103-last": record(last_live_seq=3),
    "SK104-generated": record(last_ms=0, last_seq=5, max_deleted_ms=0, max_deleted_seq=0),
    "SK105-added": record(entries_added=1),
    "SK106-deleted": record(max_deleted_ms=9),
    "SK107-nodes": record(sealed_nodes=99),
    "SK108-tombstones": record(tombstones=50),
    "SK110-one-byte": one_byte,
    "SK110-two-places": two_places,
    "SK110-counts": rows(lambda raw: miscount(raw)),
    "SK111-overlap": rows(lambda raw: put_node(raw, keys.node_key(ORDERS, 1, 35), ORDERS, 1, 35)),
    "SK112-no-stream": rows(lambda raw: put_node(raw, keys.node_key(50, 1, 1), 50, 1, 1)),
    "SK113-not-trimmed": rows(lambda raw: mark_trimmed(raw)),
    "SK114-other-place": rows(lambda raw: put_node(raw, keys.node_key(ORDERS, 1, 1), MAILS, 0, 1)),
}


def miscount(raw: RawStore) -> None:
    """Have the master entry of a node count one entry more."""
    db_key = raw.keys(keys.NODES)[-1]
    old = decode_envelope(raw.value(keys.NODES, db_key), "test")
    data = with_counts(old.listpack, 21, 0)
    put_node(raw, db_key, old.number, old.ms, old.seq, data=data)


def mark_trimmed(raw: RawStore) -> None:
    db_key = raw.keys(keys.NODES)[-1]
    old = decode_envelope(raw.value(keys.NODES, db_key), "test")
    put_node(raw, db_key, old.number, old.ms, old.seq, data=old.listpack, trimmed=b"\xff")


# --- the tests ----------------------------------------------------------------------------------


def check_case(family: str, name: str, path: Path) -> None:
    """Check, repair, check again; compare the reports."""
    target = path.with_name("repaired")
    compare(family, name, "fsck", map(str, recovery.check(path)))
    repaired = repair(path, target)
    report = repaired.report
    lines = [f"corrected: {report.corrected}"] if report.corrected else []
    lines += [f"recovered: {report.recovered}"] if report.recovered else []
    compare(family, name, "repair", lines + report.lines())
    assert repaired.findings == []
    again = repair(target, path.with_name("again"))
    assert (again.findings, again.report.lines()) == ([], [])


@pytest.mark.parametrize("name", slow_but(CASES, *list(CASES)[::3]))
def test_a_damage_is_found_and_repaired(name: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    build(path)
    CASES[name](path)
    check_case("store", name, path)


MODULES: Final[dict[str, Any]] = {"groups": of_groups, "messages": of_messages}


def case_name(kind: str, number: int, damage: tuple[str, Any]) -> str:
    return f"{damage[0].replace(' ', '-')}-{kind}-{number:02}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODULES)
def test_damages_to_groups_and_messages_are_repaired(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "sound"
    MODULES[kind].build(source)
    for number, damage in enumerate(MODULES[kind].DAMAGES):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copytree(source, folder / "store")
        with raw_store(folder / "store") as raw:
            damage[1](raw)
        check_case(kind, case_name(kind, number, damage), folder / "store")


# Findings of an archive in an object store: tests/test_engine_archive/test_publish.py.
ELSEWHERE: Final = {"SK314", "SK315"}


def test_every_code_has_a_case() -> None:
    """A case named after a code, in which fsck reports it."""
    told: dict[str, str] = {}
    for family in families():
        for name, case in read(family).items():
            for code in re.findall(r"SK\d+", name):
                told[code] = told.get(code, "") + "".join(case["fsck"])
    lacking = {code for code in CATALOGUE if code not in told.get(code, "")}
    assert lacking == ELSEWHERE


def test_no_case_is_left_over() -> None:
    from test_recovery.test_corpus_archive import CASES as ARCHIVE_CASES

    known = {"store": {*CASES}, "archive": {*ARCHIVE_CASES}}
    for kind, module in MODULES.items():
        known[kind] = {case_name(kind, *each) for each in enumerate(module.DAMAGES)}
    assert {family: {*read(family)} for family in families()} == known


def bodies(raw: RawStore, table: int) -> list[bytes]:
    return sorted(raw.body(table, key) for key in raw.keys(table))


def nacks(raw: RawStore) -> list[bytes]:
    pages = bodies(raw, keys.PEL)
    return sorted(
        page[at : at + NACK_SIZE] for page in pages for at in range(0, len(page), NACK_SIZE)
    )


def test_a_sound_store_is_written_as_it_was(tmp_path: Path) -> None:
    """Also what commands do not show at once: leases, trimmed entries, messages, and rows."""
    path, target = tmp_path / "store", tmp_path / "repaired"
    hostile.build(path)
    with Store(path, sync="none", clock=ManualClock(hostile.NOW_MS)) as store:
        # It trims in the middle of a node, which history shows until the archiver comes.
        store.xtrim("mails", maxlen=21, approximate=False)
        store.xreadgroup("mail", "eve", {"orders": ">"}, count=2)
    repaired = repair(path, target)
    assert (repaired.findings, repaired.report.lines()) == ([], [])
    assert shown(target) == shown(path)
    with raw_store(path) as before, raw_store(target) as after:
        for table in (keys.SEGMENTS, keys.ERASURES, keys.ROWS, keys.CONSUMERS):
            assert bodies(before, table) == bodies(after, table), keys.TABLES[table].name
        assert nacks(before) == nacks(after)  # perhaps in other pages
        assert any(keys.is_lease_key(key) for key in after.keys(keys.CONSUMERS))
    with Store(target, clock=ManualClock(hostile.NOW_MS)) as store:
        known = store.xadd("orders", {"a": "b"}, idmp=("p0", "m0"))
        assert known == store.xadd("orders", {"c": "d"}, idmp=("p0", "m0"))
        assert store.retention("mails") is not None


def test_a_standby_is_repaired_and_stays_one(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "repaired"
    build(path)
    with raw_store(path) as raw:
        row = StandbyRow("/elsewhere", "00000001-0123abcd", 9, 1000)
        raw.put_value(keys.META, META_STANDBY, row.encode())
    assert repair(path, target).findings == []
    with raw_store(target) as raw:
        assert decode_standby(raw.body(keys.META, META_STANDBY), "meta") == row
