"""The damage corpus: for every code a store that has this damage, and what becomes of it.

A case is a recipe here, or in `archive_damages`, `group_damages` and `message_damages`. The files
below `tests/golden/damage/` say what fsck finds in the damaged store and what repair then does and
loses (`damage_reports`). A second fsck, of the repaired store, finds nothing, and a second repair
changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

import hostile
from crash.test_damaged_journal import damage, slot_of
from damage_reports import compare, families, read
from inside import checkpoint_now, flush_each_commit
from raw_store import Damage, RawStore, Recipe, codes, delete, move, put, raw_store, rows
from segments import archive, some
from specimens import shown
from stopped import killed_at
from streamkeep import recovery, transfer
from streamkeep.engine.api.store import Store
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.store.meta import META_FORMAT
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core import keys
from streamkeep.format.journal.checkpoint import SLOT_SIZE, CheckpointSlot, decode_slot
from streamkeep.format.lmdb_file.lmdb_pages import MAIN_AT
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.rows.meta_rows import META_STANDBY, StandbyRow, decode_standby
from streamkeep.format.rows.nacks import NACK_SIZE
from streamkeep.format.rows.records import (
    STREAM_NODES,
    StreamRecord,
    decode_stream_record,
    encode_garbage,
    encode_key_row,
)
from streamkeep.format.segment.remote import META_REMOTE
from streamkeep.recovery.fsck import archive as archive_checks
from streamkeep.recovery.fsck.findings import CATALOGUE
from streamkeep.recovery.fsck.source import open_source, read_metas
from streamkeep.recovery.salvage.repair import repair
from test_format.made_nodes import with_counts
from test_recovery import archive_damages, group_damages, message_damages
from tiers import ALL

PAGE: Final = 4096
ORDERS, MAILS = 1, 2  # numbers of the streams
NAME: Final = keys.name_key(b"", b"orders")


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


def record(**values: int) -> Recipe:
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
    def recipe(path: Path) -> None:
        with (path / file).open("r+b") as stream:
            stream.seek(offset)
            stream.write(data)

    return recipe


def page_of(path: Path, table: int) -> int:
    with open_source(path) as source:
        assert source.tables is not None
        return next(source.tables.tree(table).leaves()).number


def zero_leaf(table: int) -> Recipe:
    def recipe(path: Path) -> None:
        at("data.mdb", page_of(path, table) * PAGE, bytes(PAGE))(path)

    return recipe


def in_node(*places: int, bits: int) -> Recipe:
    def recipe(path: Path) -> None:
        with open_source(path) as source:
            assert source.tables is not None
            page = next(source.tables.walk(keys.NODES)).leaf
        assert page is not None
        data = bytearray((path / "data.mdb").read_bytes())
        for place in places:
            data[page.number * PAGE + page.places[1] + place] ^= bits
        (path / "data.mdb").write_bytes(data)

    return recipe


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


def only_checkpoint(path: Path, slot: CheckpointSlot) -> None:
    (path / "steady").write_bytes(slot.encode().ljust(2 * SLOT_SIZE, b"\0"))


def other_boot(path: Path) -> None:
    """As after a power loss: commits after the checkpoint, and another boot."""
    slot = slot_of(path)._replace(boot_id=b"another boot....")
    with Store(path, sync="none", clock=ManualClock(2000)) as store:
        flush_each_commit(store)
        store.xadd("orders", {"late": "1"}, id="2-0")
        shutil.copytree(path / JOURNAL_FOLDER, path.with_name("journal"))
    only_checkpoint(path, slot)
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
    damage(path, 2)


def gap_in_journal(path: Path) -> None:
    """The same, and LMDB has none of these commits."""
    damage_in_journal(path)
    path.with_name("old.mdb").rename(path / "data.mdb")


def other_row(path: Path) -> None:
    """LMDB has another row of a stream than the journal makes."""
    killed(path)
    record(max_deleted_seq=3)(path)


def checkpoint_of_other(path: Path) -> None:
    only_checkpoint(path, slot_of(path)._replace(store_uuid=bytes(16)))


def one_slot(path: Path) -> None:
    data = (path / "steady").read_bytes()
    whole = [place for place in (0, 1) if decode_slot(data[place * SLOT_SIZE :]) is not None]
    at("steady", (1 - whole[-1]) * SLOT_SIZE, b"SKP\1 torn")(path)


def meta_pages(path: Path) -> None:
    at("data.mdb", 0, bytes(200))(path)
    at("data.mdb", PAGE, bytes(200))(path)


def all_metas(path: Path) -> None:
    meta_pages(path)
    at("steady", 0, bytes(2 * SLOT_SIZE))(path)


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


CASES: Final[dict[str, Recipe]] = {
    "SK001-row": rows(lambda raw: raw.flip_bit(keys.KEYS, NAME)),
    "SK001-stream": rows(
        lambda raw: raw.put_value(keys.STREAMS, keys.pack_number(ORDERS), b"nothing")
    ),
    "SK002-meta": rows(delete(keys.META, META_FORMAT)),
    "SK002-remote": rows(lambda raw: raw.put_value(keys.META, META_REMOTE, b"no setting")),
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
    "SK010-other-name": rows(move(keys.KEYS, NAME, keys.name_key(b"", b"other"))),
    "SK011-two-names": rows(
        put(keys.KEYS, keys.name_key(b"", b"copy"), encode_key_row(ORDERS, b"copy"))
    ),
    "SK012-no-record": rows(delete(keys.STREAMS, keys.pack_number(ORDERS))),
    "SK013-no-name": rows(delete(keys.KEYS, NAME)),
    "SK014-counter": rows(put(keys.META, b"next_stream_number", bytes(7) + b"\1")),
    "SK015-garbage": rows(
        put(keys.GARBAGE, keys.pack_number(1), encode_garbage(STREAM_NODES, ORDERS))
    ),
    "SK016-no-second-name": rows(delete(keys.NAMES, keys.pack_number(MAILS))),
    "SK016-other-name": rows(put(keys.NAMES, keys.pack_number(MAILS), b"letters")),
    "SK020-no-point": at("steady", 0, bytes(2 * SLOT_SIZE)),
    "SK021-one-slot": one_slot,
    "SK022-torn": other_boot,
    "SK023-other-store": checkpoint_of_other,
    "SK024-gap": gap_in_journal,
    "SK025-stray": lambda path: (path / "notes.txt").write_text("mine"),
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
    "SK110-one-byte": in_node(100, bits=0x55),
    "SK110-two-places": in_node(150, 220, bits=0xFF),
    "SK110-counts": rows(miscount),
    "SK111-overlap": rows(lambda raw: put_node(raw, keys.node_key(ORDERS, 1, 35), ORDERS, 1, 35)),
    "SK112-no-stream": rows(lambda raw: put_node(raw, keys.node_key(50, 1, 1), 50, 1, 1)),
    "SK113-not-trimmed": rows(mark_trimmed),
    "SK114-other-place": rows(lambda raw: put_node(raw, keys.node_key(ORDERS, 1, 1), MAILS, 0, 1)),
}


def numbered(kind: str, damages: list[tuple[str, Damage]]) -> dict[str, Recipe]:
    return {
        f"{names.replace(' ', '-')}-{kind}-{number:02}": rows(change)
        for number, (names, change) in enumerate(damages)
    }


FAMILIES: Final[dict[str, tuple[Recipe, dict[str, Recipe]]]] = {
    "store": (build, CASES),
    "archive": (archive_damages.build, archive_damages.CASES),
    "groups": (group_damages.build, numbered("groups", group_damages.DAMAGES)),
    "messages": (message_damages.build, numbered("messages", message_damages.DAMAGES)),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """A function that copies the sound store of a family below a folder, and returns its path."""
    made: dict[str, Path] = {}

    def copied(family: str, folder: Path) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family) / "store"
            FAMILIES[family][0](made[family])
            assert codes(made[family]) == []
        return Path(shutil.copytree(made[family], folder / "store"))

    return copied


@pytest.mark.parametrize(
    ("family", "name"),
    [(family, name) for family, (_, cases) in FAMILIES.items() for name in cases],
)
def test_a_damage_is_found_and_repaired(
    sound: Callable[[str, Path], Path], tmp_path: Path, family: str, name: str
) -> None:
    """Check, repair, check again; compare the reports. The daily tests repair a third."""
    path, target = sound(family, tmp_path), tmp_path / "repaired"
    cases = FAMILIES[family][1]
    cases[name](path)
    before = (path / "data.mdb").read_bytes() if (path / "data.mdb").exists() else b""
    compare(family, name, "fsck", map(str, recovery.check(path)))
    if not (ALL or list(cases).index(name) % 3 == 0):
        return
    repaired = repair(path, target)
    report = repaired.report
    lines = [f"corrected: {report.corrected}"] if report.corrected else []
    lines += [f"recovered: {report.recovered}"] if report.recovered else []
    compare(family, name, "repair", lines + report.lines())
    assert repaired.findings == []
    again = repair(target, tmp_path / "again")
    assert (again.findings, again.report.lines()) == ([], [])
    if before:
        assert (path / "data.mdb").read_bytes() == before


# Findings of an archive in an object store: tests/test_engine_archive/test_publish.py.
ELSEWHERE: Final = {"SK314", "SK315", "SK316", "SK317"}


def test_every_code_has_a_case_and_no_case_is_left_over() -> None:
    """A case named after a code, in which fsck reports it."""
    told: dict[str, str] = {}
    for family in families():
        cases = read(family)
        assert {*cases} == {*FAMILIES[family][1]}
        for name, case in cases.items():
            for code in re.findall(r"SK\d+", name):
                told[code] = told.get(code, "") + "".join(case["fsck"])
    lacking = {code for code in CATALOGUE if code not in told.get(code, "")}
    assert lacking == ELSEWHERE


def pending_above_the_last_id(path: Path) -> None:
    """XSETID goes back in a stream that was trimmed empty, and Redis keeps what is pending."""
    with Store(path, sync="none") as store:
        store.xtrim("s", maxlen=0, approximate=False)
        store.xsetid("s", "0-1")
        assert store.xpending("s", "many")["max"] == b"1-99"


def later_message_with_a_lower_id(path: Path) -> None:
    """XIDMPRECORD names any entry, and XSETID may go back in a stream that was trimmed empty."""
    with Store(path, sync="none", clock=ManualClock(1)) as store:
        store.xidmprecord("s", "ping", "again", "1000-0")
        store.xtrim("s", maxlen=0, approximate=False)
        store.xsetid("s", "0-1")
        assert store.xadd("s", {"f": "v"}, idmp=("ping", "new")) == b"1-0"


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("groups", pending_above_the_last_id),
        # As in a dump of Redis 7.0, which takes any ENTRIESREAD.
        ("groups", rows(group_damages.set_in_group(b"idle", entries_read=10**6))),
        ("messages", later_message_with_a_lower_id),
    ],
    ids=["pending", "entries-read", "message"],
)
def test_what_is_odd_and_no_damage(
    sound: Callable[[str, Path], Path], tmp_path: Path, family: str, change: Recipe
) -> None:
    path = sound(family, tmp_path)
    change(path)
    assert codes(path) == []


def test_each_damaged_block_is_named_and_a_quick_check_passes_over_it(
    sound: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    path = sound("archive", tmp_path)
    with Store(path, readonly=True) as store:
        blocks = store.open_segment(store.archived_segments("orders")[0]).index.blocks
    file = min(path.rglob("*.seg"))
    data = bytearray(file.read_bytes())
    data[blocks[0].offset + 15] ^= 1
    data[blocks[1].offset + 15] ^= 1
    file.write_bytes(data)
    found = [str(one) for one in recovery.check(path)]
    assert [text.split(":")[0] for text in found] == ["error SK302", "error SK302"]
    assert "block 0 of segment" in found[0]
    assert "block 1 of segment" in found[1]
    rows(archive_damages.erased)(path)
    assert list(recovery.check(path, quick=True)) == []
    file.write_bytes(data[:-1])
    assert [one.code for one in recovery.check(path, quick=True)] == ["SK302"]


def test_a_file_that_goes_while_the_store_is_checked(
    sound: Callable[[str, Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are dropped between the snapshot of the check and its look at the files."""
    path = sound("archive", tmp_path)
    with Store(path, sync="none") as store:
        original: Callable[..., object] = archive_checks.check_segments

        def drop_before(*args: object) -> object:
            store.drop_segments("orders", before=2000)
            archive(store, "other", some(60))
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(archive_checks, "check_segments", drop_before)
            assert [str(one) for one in recovery.check(store)] == []
    assert len(list(path.rglob("*.seg"))) == 2


def test_files_that_go_to_an_object_store_while_the_store_is_checked(
    sound: Callable[[str, Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot of the check does not know yet that there is one."""
    path = sound("archive", tmp_path)
    with Store(path, sync="none") as store:
        original: Callable[..., object] = archive_checks.check_segments

        def move_before(*args: object) -> object:
            store.archive(to=tmp_path / "fleet")
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(archive_checks, "check_segments", move_before)
            assert [str(one) for one in recovery.check(store)] == []
        next((tmp_path / "fleet").rglob("*.seg")).unlink()
        assert [one.code for one in recovery.check(store)] == ["SK301"]


def test_a_table_of_retired_nodes_that_is_gone(path: Path, tmp_path: Path) -> None:
    with Store(path, sync="none", decode_responses=True) as store:
        store.set_retention("orders", archive=True)
        store.xadd_many("orders", [{"n": "x" * 50}] * 900, ids=[f"{n}-1" for n in range(1, 901)])
        store.xtrim("orders", maxlen=600, approximate=False)
        store.archive()
        store.xdel("orders", "301-1")
        store.xtrim("orders", maxlen=300, approximate=False)
        retired = [str(one.id) for one in store.xrange("orders", 1, 600, history=True)]
    no_table(b"retired")(path)
    assert codes(path) == ["SK009"]
    assert repair(path, tmp_path / "repaired").findings == []
    aside = tmp_path / "repaired" / "lost+found" / "entries.jsonl"
    lost = [json.loads(line)["id"] for line in aside.read_text().splitlines()]
    with Store(tmp_path / "repaired", readonly=True, decode_responses=True) as store:
        kept = [str(one.id) for one in store.xrange("orders", 1, 600, history=True)]
    assert sorted(kept + lost) == sorted(retired)
    loaded = transfer.load(tmp_path / "aside", aside, key="orders", sort=True)
    assert loaded.entries == len(lost)


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


def test_a_killed_repair_leaves_nothing_that_the_next_one_keeps(tmp_path: Path) -> None:
    path, target = tmp_path / "store", tmp_path / "repaired"
    archive_damages.build(path)
    killed_at("segment:begun", lambda: repair(path, target))
    assert len(os.listdir(tmp_path)) == 3
    assert repair(path, target).findings == []
    assert sorted(os.listdir(tmp_path)) == ["repaired", "store"]
