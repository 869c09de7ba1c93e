"""Archives under a URI: published, verified, read through, erased, taken over, in a folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import zstandard

import streamkeep
from archived_streams import segments, shown
from cli_runner import run
from inside import environment_of, segment_files_of
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import archive
from streamkeep.engine.archive.sealed_segments import SealedSegments
from streamkeep.engine.remote.object_store import (
    FolderObjects,
    ReadAt,
    normal_uri,
    open_objects,
    put_bytes,
)
from streamkeep.engine.remote.remote_archive import CHUNK_BYTES, ChunkCache, RemoteArchive
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.whole_store import erase
from streamkeep.format.core import errors
from streamkeep.format.core.entry import MAX_ID, StreamId
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.remote import (
    Manifest,
    RemoteSegment,
    RemoteSetting,
    RemoteStream,
    Removed,
    decode_head,
    decode_manifest,
    decode_setting,
    encode_manifest,
)
from streamkeep.recovery import backup, check
from streamkeep.recovery.fsck.findings import Finding


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return tmp_path / "fleet"


def fill(store: Store, count: int, key: str = "s") -> list[bytes]:
    ids = store.xadd_many(key, [{"n": str(one), "x": f"{one:030}"} for one in range(count)])
    store.set_retention(key, archive=True)
    return ids


def found(store: Store) -> list[Finding]:
    return list(check(store.path))


def remote_of(store: Store, fleet: Path | str) -> RemoteArchive:
    return RemoteArchive(open_objects(str(fleet)), store.uuid)


def manifest_of(store: Store, fleet: Path | str) -> Manifest:
    newest = remote_of(store, fleet).newest()
    assert newest is not None
    return newest[1]


def ids_there(store: Store, fleet: Path) -> list[str]:
    """Return the IDs that a reader of the objects alone finds, of the archive first."""
    seen: dict[str, bool] = {}
    remote = remote_of(store, fleet)
    for one in manifest_of(store, fleet).segments:
        segment = remote.open(one.record, sealed=one.sealed)
        assert not list(segment.check())
        copy = fleet.parent / "reader"
        with streamkeep.open(copy) as reader:
            path = fleet / store.uuid / one.name
            list(reader.adopt_segments(path, key="s"))
            seen.update(
                (str(entry.id, "ascii"), True) for entry in reader.xrange("s", history=True)
            )
        shutil.rmtree(copy)
    return sorted(seen, key=StreamId.parse)


def test_segments_move_and_are_read_through(store: Store, fleet: Path) -> None:
    ids = fill(store, 300)
    store.xtrim("s", maxlen=50)
    report = store.archive(to=fleet, name="shop", labels={"env": "test"})
    assert report.segments == report.published.uploaded == report.published.version == 1
    assert report.published.freed_bytes == report.published.uploaded_bytes > 0
    assert segments(store) == []
    assert shown(store) == ids
    assert [one.problems for one in store.verify_archive()] == [[]]
    head = remote_of(store, fleet).head()
    assert head is not None
    assert (head.name, head.labels, head.version) == ("shop", {"env": "test"}, 1)
    setting = store.remote_archive()
    assert setting is not None
    assert (setting.uri, setting.name) == (fleet.as_uri(), "shop")
    store.xtrim("s", maxlen=10)
    assert store.archive().published.uploaded == 1  # the store has noted the URI
    assert shown(store) == ids
    store.close()
    with streamkeep.open(store.path, readonly=True) as again:
        assert shown(again) == ids
    again.close()
    assert found(store) == []


def test_seal_needs_a_uri_and_changes_nothing_without(store: Store) -> None:
    with pytest.raises(errors.ArgumentError, match="also give `to`"):
        store.archive(seal=True)
    assert store.remote_archive() is None


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("ftp://host/x", "unknown scheme ftp://"),
        ("s3://key:secret@bucket/x", "contains settings"),
        ("s3://bucket/x?region=eu", "contains settings"),
        ("s3:///x", "names no bucket"),
        ("s3:/bucket/x", "begins with s3://"),
        ("s3://bucket/x#y", "written as %23"),
        ("file:///a%00b", "a NUL cannot be in a path"),
        ("file://host/x", "a path from the root on"),
        ("file://", "a path from the root on"),
        ("s3://bucket/\udcff", "no lone surrogates"),
        ("s3://[", "Invalid IPv6 URL"),
        ("", "to must be the path of"),
        ("STORE/archive/there", "it is in the store, and would be lost with it"),
        ("STORE/../loop", "Too many levels of symbolic links"),
    ],
)
def test_a_uri_that_cannot_be_used_is_an_error(store: Store, place: str, problem: str) -> None:
    store.path.with_name("loop").symlink_to("loop")
    with pytest.raises((errors.ArgumentError, errors.StoreError), match=problem):
        store.archive(to=place.replace("STORE", str(store.path)))
    assert store.remote_archive() is None


@pytest.mark.parametrize("wrong", [{"name": 5}, {"labels": {"shard": 3}}, {"labels": "a=b"}])
def test_a_name_or_a_label_that_is_no_text_is_an_error(
    store: Store, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(errors.ArgumentError, match=f"{next(iter(wrong))} must be text"):
        store.archive(to=tmp_path, **wrong)
    assert store.remote_archive() is None


@pytest.mark.parametrize(
    ("uri", "problem"),
    [("az://x", "Account must be"), ("s3://x/../y", "nowhere"), ("gs://x/%2e", "nowhere")],
)
def test_a_bucket_that_its_client_does_not_take_is_an_error(uri: str, problem: str) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install '.[s3]'")
    with pytest.raises(errors.ArgumentError, match=f"{uri}: .*{problem}"):
        open_objects(uri)


def test_uris_have_one_form() -> None:
    assert normal_uri("s3a://bucket/a//b/") == "s3://bucket/a/b"
    assert normal_uri("/srv/fleet/") == normal_uri("file:///srv/fleet")
    assert normal_uri("file://LOCALHOST/srv/fleet") == normal_uri("/srv/fleet")


def test_sealed_segments_hold_live_entries_and_grow_few(store: Store, fleet: Path) -> None:
    ids = fill(store, 100)
    assert store.archive(to=fleet, seal=True).published.sealed_entries == 100
    assert store.xlen("s") == 100
    for _ in range(12):
        ids += fill(store, 20)
        assert store.archive(seal=True).published.sealed_entries == 20
        assert manifest_of(store, fleet).streams[1].complete_to == StreamId.parse(ids[-1])
    assert len(manifest_of(store, fleet).segments) <= 6
    assert ids_there(store, fleet) == [one.decode() for one in ids]
    head = remote_of(store, fleet).head()
    assert head is not None
    assert head.sealed_ms is not None
    ids.append(store.xadd("s", {"n": 1}, id=str(MAX_ID)))
    for count in (1, 0):  # nothing can come after it
        assert store.archive(seal=True).published.sealed_entries == count


def test_a_node_whose_first_entry_was_sealed_and_deleted_is_sealed_on(
    store: Store, fleet: Path
) -> None:
    ids = fill(store, 1)
    store.archive(to=fleet, seal=True)
    ids += fill(store, 3)
    store.xdel("s", ids[0])
    store.archive(seal=True)
    assert ids_there(store, fleet)[-3:] == [one.decode() for one in ids[-3:]]


def test_field_names_of_a_deleted_entry_are_not_sealed_with_its_node(
    store: Store, fleet: Path
) -> None:
    """An erasure would not find them there."""
    store.xadd("s", {"secret": "1"}, id="1-0")
    store.xadd("s", {"n": "2"}, id="2-0")
    store.xdel("s", "1-0")
    store.archive(to=fleet, seal=True)
    (sealed,) = manifest_of(store, fleet).segments
    assert b"secret" not in remote_of(store, fleet).open(sealed.record, sealed=True).raw_block(0)


def test_an_adopted_node_whose_first_entry_was_deleted_is_not_sealed_again(
    open_store: Open, fleet: Path, tmp_path: Path
) -> None:
    with streamkeep.open(tmp_path / "other") as other:
        other.set_retention("s", archive=True)
        other.xadd_many("s", [{"n": n} for n in range(3)], ["5-0", "6-0", "7-0"])
        other.xdel("s", "5-0")
        other.xtrim("s", maxlen=0, approximate=False)
        other.archive()
        list(other.export_segments(tmp_path / "out"))
    store = open_store(node_max_entries=1)
    store.xadd_many("s", [{"n": n} for n in range(2)], ["1-0", "20-0"])
    list(store.adopt_segments(tmp_path / "out", key="s"))
    assert store.archive(to=fleet, seal=True).published.sealed_entries == 2


def test_archived_segments_replace_sealed_ones(store: Store, fleet: Path) -> None:
    ids = fill(store, 400)
    store.archive(to=fleet, seal=True)
    store.xdel("s", ids[3])
    store.xtrim("s", maxlen=0)
    store.archive()
    there = manifest_of(store, fleet).segments
    assert [one.sealed for one in there] == [False]
    assert ids_there(store, fleet) == [one.decode() for one in ids if one != ids[3]]


def test_a_sealed_segment_stays_while_it_has_the_only_copy(store: Store, fleet: Path) -> None:
    ids = fill(store, 400)
    store.archive(to=fleet, seal=True)
    store.set_retention("s", archive=False)
    store.xtrim("s", maxlen=200)
    store.set_retention("s", archive=True)
    store.xtrim("s", maxlen=0)
    store.archive()
    assert {one.sealed for one in manifest_of(store, fleet).segments} == {False, True}
    assert ids_there(store, fleet)[0] == ids[0].decode()


def test_a_sealed_segment_stays_if_archived_ones_around_its_entries_lack_them(
    open_store: Open, fleet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(node_max_entries=10)
    ids = fill(store, 300)
    store.archive(to=fleet, seal=True)
    store.xtrim("s", minid=ids[100], approximate=False)
    store.set_retention("s", archive=False)
    store.xtrim("s", minid=ids[200], approximate=False)
    store.set_retention("s", archive=True)
    store.xtrim("s", maxlen=0)
    for _ in range(2):
        store.archive(seal=True)
        assert [one.sealed for one in manifest_of(store, fleet).segments] == [False, True]
    assert ids_there(store, fleet) == [one.decode() for one in ids]
    with streamkeep.open(tmp_path / "again") as again:
        list(again.adopt_segments(f"{fleet.as_uri()}/{store.uuid}"))
        assert "trimmed without being archived" in caplog.text
        list(again.adopt_segments(*(fleet / store.uuid / "sealed").rglob("*.seg"), key="sealed"))
        assert shown(again, "sealed") == ids


def test_entries_that_are_removed_unpublished_go_from_sealed_segments_too(
    open_store: Open, fleet: Path
) -> None:
    store = open_store(node_max_entries=10)
    ids = fill(store, 100)
    store.archive(to=fleet, seal=True)
    store.xtrim("s", maxlen=40, approximate=False)
    archive(environment_of(store))
    store.drop_segments("s", before=ids[60])
    assert ids_there(store, fleet) == [one.decode() for one in ids[60:]]
    store.xtrim("s", maxlen=0)
    store.archive(seal=True)
    store.drop_segments("s")
    assert manifest_of(store, fleet).segments == ()
    assert list(fleet.rglob("*.seg")) == []


def test_a_removal_that_cannot_be_published_is_repeated_as_a_whole(
    open_store: Open, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(node_max_entries=10)
    ids = fill(store, 100)
    store.archive(to=fleet, seal=True)
    store.xtrim("s", maxlen=40, approximate=False)
    archive(environment_of(store))
    put, left = FolderObjects.put, 0

    def fails(self: FolderObjects, name: str, read_at: ReadAt, size: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise errors.UnreachableError("gone")
        put(self, name, read_at, size)

    monkeypatch.setattr(FolderObjects, "put", fails)
    with pytest.raises(errors.UnreachableError):
        store.drop_segments("s", before=ids[60])
    assert shown(store) == ids
    left = 3  # a segment, and the manifest and head that name it
    with pytest.raises(errors.UnreachableError):
        store.drop_segments("s", before=ids[60])
    assert shown(store) == ids[60:]
    monkeypatch.undo()
    store.archive()
    assert ids_there(store, fleet) == [one.decode() for one in ids[60:]]


def test_the_work_for_a_sealed_segment_does_not_grow_with_the_archive(open_store: Open) -> None:
    looked_at = 0

    class Counted(SegmentRecord):
        @property
        def first_id(self) -> StreamId:
            nonlocal looked_at
            looked_at += 1
            return super().first_id

    def record(place: int) -> SegmentRecord:
        first, last = place * 10, place * 10 + 9
        return Counted(1, first, 0, last, 0, 9, 1, 1, 1, 1, 1, 1, 0, 1, 0, f"{place}", b"s")

    archived = [record(one) for one in range(1000)]
    sealed = [RemoteSegment(record(one), True) for one in range(1000, 1100)]
    before = Manifest({}, (*(RemoteSegment(one, False) for one in archived), *sealed))
    environment = environment_of(open_store())
    copies = SealedSegments(environment, RemoteArchive(open_objects("/x"), ""), before, archived)
    copies.leave_out_removed((), ())
    copies.drop_covered(())
    assert copies.segments == sealed
    assert looked_at < 100 * 100


def test_an_erasure_reaches_sealed_copies_of_a_deleted_stream(store: Store, fleet: Path) -> None:
    ids = fill(store, 10)
    store.set_retention("s", archive=False)
    store.archive(to=fleet, seal=True)
    store.rename("s", "t")
    store.archive()
    store.delete("t")
    for key in ("s", "t"):  # each that it had
        store.erase(key, ids.pop(4))
        assert ids_there(store, fleet) == [one.decode() for one in ids]


@pytest.mark.parametrize("when", ["never published", "without a head", "deleted meanwhile"])
def test_an_erasure_reaches_sealed_copies_of_a_deleted_stream_that_no_manifest_names_so(
    store: Store, fleet: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    ids = fill(store, 10)
    store.set_retention("s", archive=False)
    if when == "never published":
        failpoints.arm("publish:noted", Mock(side_effect=KeyboardInterrupt))
    with suppress(KeyboardInterrupt):
        store.archive(to=fleet, seal=True)
    if when == "without a head":
        (fleet / store.uuid / "store.json").unlink()
    with monkeypatch.context() as patch:
        if when == "deleted meanwhile":
            patch.setattr(erase, "remove_leftovers", lambda *_: store.delete("s"))
        else:
            store.delete("s")
        store.erase("s", ids.pop(4))
    assert ids_there(store, fleet) == [one.decode() for one in ids]


def test_an_erasure_reaches_what_was_sealed_while_it_waited(store: Store, fleet: Path) -> None:
    ids = fill(store, 10)
    store.set_retention("s", archive=False)
    gone = ids.pop(4)
    waits = threading.Thread(target=lambda: store.erase("s", gone))

    def meanwhile() -> None:
        store.delete("s")
        waits.start()
        waits.join(0.5)
        assert waits.is_alive()

    failpoints.arm("publish:uploaded", meanwhile)
    store.archive(to=fleet, seal=True)
    waits.join()
    assert ids_there(store, fleet) == [one.decode() for one in ids]


def test_a_manifest_keeps_the_last_key_of_a_deleted_stream(open_store: Open, fleet: Path) -> None:
    """It may have been renamed since the last manifest, and its segments name the key before."""
    store = open_store(node_max_entries=10)
    ids = fill(store, 100)
    store.xtrim("s", maxlen=40, approximate=False)
    store.set_retention("s", archive=False)
    store.archive(to=fleet, seal=True)
    store.rename("s", "t")
    store.delete("t")
    for key in ("t", "s"):
        store.erase(key, ids.pop(80))
        assert manifest_of(store, fleet).streams[1].key == b"t"
        assert ids_there(store, fleet) == [one.decode() for one in ids]
    store.maintain()
    assert store.drop_segments(stream_number=1)  # now nothing in the store names it
    assert manifest_of(store, fleet).streams[1].key == b"t"
    assert ids_there(store, fleet) == [one.decode() for one in ids[60:]]


@pytest.mark.parametrize("removes", ["segments", "manifests"])
def test_a_run_after_a_killed_one_removes_its_objects(
    store: Store, fleet: Path, monkeypatch: pytest.MonkeyPatch, removes: str
) -> None:
    ids = fill(store, 100)
    store.xtrim("s", maxlen=0)
    store.archive(to=fleet)
    remove = FolderObjects.remove

    def fails(self: FolderObjects, name: str) -> None:
        if removes in name:
            raise errors.UnreachableError("gone")
        remove(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(FolderObjects, "remove", fails)
        with suppress(errors.UnreachableError):
            store.erase("s", ids[4])
        with suppress(errors.UnreachableError):
            store.archive()
    (fleet / store.uuid / "segments" / ".1.seg-x.part").touch()  # killed while it wrote
    store.erase("s")
    assert len(list(fleet.rglob("*.seg*"))) == len(list(fleet.rglob("*.zst"))) == 1
    assert store.archive().published.removed == 0


def test_an_archive_moves_to_another_uri(store: Store, tmp_path: Path) -> None:
    ids = fill(store, 100)
    store.xtrim("s", maxlen=0)
    store.archive(to=tmp_path / "one")
    assert shown(store) == ids
    assert store.archive(to=tmp_path / "two").published.uploaded == 1
    with pytest.raises(errors.StoreError, match="was there before it moved"):
        store.archive(to=tmp_path / "one")
    shutil.rmtree(tmp_path / "one")
    assert store.erase("s", ids.pop(4)) == 1
    assert shown(store) == ids


def test_sealed_segments_move_with_the_archive(store: Store, tmp_path: Path) -> None:
    ids = fill(store, 300)
    store.set_retention("s", archive=False)
    store.archive(to=tmp_path / "one", seal=True)
    store.xtrim("s", maxlen=100)
    report = store.archive(to=tmp_path / "two").published
    assert report.moved_from == f"{(tmp_path / 'one').as_uri()}/{store.uuid}"
    assert ids_there(store, tmp_path / "two") == [one.decode() for one in ids]
    head, old = (remote_of(store, tmp_path / name).head() for name in ("two", "one"))
    assert head is not None
    assert old is not None
    assert head.sealed_ms == old.sealed_ms is not None
    ids += fill(store, 10)
    assert store.archive(seal=True).published.sealed_entries == 10


@pytest.mark.parametrize("moves", [False, True])
def test_a_publication_that_is_repeated_brings_back_nothing_that_was_removed_since(
    open_store: Open, tmp_path: Path, moves: bool
) -> None:
    store, one, two = open_store(node_max_entries=10), tmp_path / "one", tmp_path / "two"
    ids = fill(store, 100)
    if moves:
        store.archive(to=one, seal=True)
    failpoints.arm("publish:uploaded", lambda: exec("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        store.archive(to=two, seal=True)
    store.xtrim("s", maxlen=40, approximate=False)
    store.archive()
    store.drop_segments("s")
    store.archive(to=two, seal=True)
    assert ids_there(store, two) == [one.decode() for one in ids[60:]]


def test_what_a_first_publication_has_noted_outlives_another_that_was_killed_before(
    open_store: Open, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(node_max_entries=10)
    ids: list[bytes] = []
    tokens = iter("zyx")
    monkeypatch.setattr("secrets.token_hex", lambda _: next(tokens))
    for step in ("publish:manifest", "publish:noted"):
        ids += fill(store, 50)
        failpoints.arm(step, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.archive(to=fleet, seal=True)
    store.set_retention("s", archive=False)
    store.xtrim("s", maxlen=0)
    store.archive()
    assert ids_there(store, fleet) == [one.decode() for one in ids]


@pytest.mark.parametrize("step", ["publish:uploaded", "publish:manifest", "publish:noted"])
def test_what_a_killed_first_publication_has_left_is_known(
    open_store: Open, fleet: Path, step: str
) -> None:
    """An erasure reaches it, and so does a removal, though there is no head yet."""
    store = open_store(node_max_entries=10)
    ids = fill(store, 100)
    store.xtrim("s", maxlen=40, approximate=False)
    archive(environment_of(store))
    store.xtrim("s", maxlen=20, approximate=False)
    failpoints.arm(step, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.archive(to=fleet, seal=True)
    assert list(fleet.rglob("*.seg"))
    store.erase("s", ids.pop(50), ids.pop(3))
    assert ids_there(store, fleet)[:78] == [one.decode() for one in ids[:78]]
    store.drop_segments("s")
    store.archive(seal=True)
    assert ids_there(store, fleet) == [one.decode() for one in ids[78:]]


@pytest.mark.parametrize("headless", [False, True])
def test_a_sealed_stream_that_was_taken_back_is_sealed_again(
    store: Store, fleet: Path, headless: bool
) -> None:
    store.xadd_many("s", [{"n": "old"}] * 9, [f"{n}-0" for n in range(1, 10)])
    store.archive(to=fleet, seal=True)
    store.xtrim("s", maxlen=0)
    store.xsetid("s", "5-0")
    store.xadd("s", {"n": "new"}, id="7-0")
    store.xadd("s", {"n": "new"}, id="20-0")
    for again in (False, True):  # what was noted counts once
        if again and headless:
            (fleet / store.uuid / "store.json").unlink()
        store.archive(seal=True)
        assert ids_there(store, fleet) == [*(f"{n}-0" for n in range(1, 6)), "7-0", "20-0"]
        assert manifest_of(store, fleet).streams[1].complete_to >= (20, 0)
        store.xadd("s", {"n": "new"}, id="*")
        store.xtrim("s", maxlen=0)  # now only the sealed segment has them


@pytest.mark.parametrize("fails", [False, True])
def test_a_segment_that_is_too_old_before_it_was_published_leaves_no_sealed_copy(
    open_store: Open, fleet: Path, *, fails: bool
) -> None:
    clock = ManualClock(1000)
    store = open_store(clock=clock, node_max_entries=10)
    ids = fill(store, 40)
    clock.ms += 1000
    ids += fill(store, 10)
    store.archive(to=fleet, seal=True)
    store.xtrim("s", maxlen=10, approximate=False)
    archive(environment_of(store))
    store.set_retention("s", archive_max_age=0.5)
    assert store.maintain().dropped == 1
    if fails:  # with its version noted, and without its head
        failpoints.arm("publish:noted", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.archive()
    store.archive()
    assert ids_there(store, fleet) == [one.decode() for one in ids[40:]]


@pytest.mark.parametrize("lost", ["head", "head and manifests"])
def test_an_archive_is_sealed_on_without_its_head(open_store: Open, fleet: Path, lost: str) -> None:
    """As after a move that was killed before the head was written."""
    store = open_store(node_max_entries=10)
    ids = fill(store, 95)
    store.archive(to=fleet, seal=True)
    (fleet / store.uuid / "store.json").unlink()
    if lost != "head":
        shutil.rmtree(fleet / store.uuid / "manifests")
    ids += fill(store, 10)
    report = store.archive(seal=True).published
    assert (report.sealed_entries == 10) == (lost == "head")
    assert ids_there(store, fleet) == [one.decode() for one in ids]
    store.xtrim("s", maxlen=0)
    store.archive()
    (archived,) = store.archived_segments()
    for name in ("store.json", f"segments/{archived.path}"):
        (fleet / store.uuid / name).unlink()
    assert store.archive().published.missing == (archived,)
    store.drop_segments("s")


def test_an_archive_leaves_a_place_that_is_gone_only_when_it_is_told_so(
    open_store: Open, tmp_path: Path
) -> None:
    store, one, two = open_store(), tmp_path / "one", tmp_path / "two"
    ids = fill(store, 100)
    store.archive(to=one, seal=True)
    one.rename(tmp_path / "away")
    one.touch()  # a server that does not answer
    with pytest.raises(
        errors.UnreachableError, match=r"make an empty one in its place \(file:.*one"
    ):
        store.archive(to=two, seal=True)
    setting = store.remote_archive()
    assert setting is not None
    assert setting.uri == one.as_uri()
    one.unlink()
    one.mkdir()
    assert store.archive(to=two, seal=True).published.sealed_entries == 100
    assert ids_there(store, two) == [one.decode() for one in ids]


def test_a_move_that_is_repeated_removes_there_what_was_erased_since(
    open_store: Open, tmp_path: Path
) -> None:
    store, two = open_store(), tmp_path / "two"
    ids = fill(store, 10)
    store.archive(to=tmp_path / "one", seal=True)
    failpoints.arm("publish:uploaded", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.archive(to=two, seal=True)
    store.erase("s", ids.pop(4))
    store.archive(to=two)
    assert len(list(two.rglob("*.seg"))) == 1
    assert ids_there(store, two) == [one.decode() for one in ids]


def test_a_deleted_entry_does_not_come_back_when_erased_ones_beside_it_have_gone(
    open_store: Open, fleet: Path
) -> None:
    """The archived segment begins higher then; below it, a sealed one is read."""
    store = open_store(node_max_entries=10)
    ids = fill(store, 100)
    store.archive(to=fleet, seal=True)
    store.xdel("s", ids[0], ids[5])
    store.xtrim("s", maxlen=50, approximate=False)
    store.archive()
    store.erase("s", *ids[1:5])
    assert ids_there(store, fleet) == [ids[0].decode(), *(one.decode() for one in ids[6:])]


def test_an_archive_that_moves_leaves_behind_what_was_removed(
    open_store: Open, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store(node_max_entries=10)
    ids = fill(store, 100)
    store.archive(to=tmp_path / "one", seal=True)
    store.set_retention("s", archive=True, archive_max_age="1d")
    store.xtrim("s", maxlen=40, approximate=False)
    store.archive()
    clock.ms += 2 * 86_400_000
    assert store.maintain().dropped == 1
    store.archive(to=tmp_path / "two")
    assert ids_there(store, tmp_path / "two") == [one.decode() for one in ids[60:]]


def test_a_lost_sealed_segment_is_found_and_what_is_live_is_copied_again(
    open_store: Open, fleet: Path
) -> None:
    store = open_store(node_max_entries=10)
    ids = fill(store, 100)
    store.archive(to=fleet, seal=True)
    ids += fill(store, 5)
    store.archive(seal=True)
    store.xtrim("s", maxlen=60, approximate=False)
    first = min((one.record for one in manifest_of(store, fleet).segments), key=lambda one: one[:3])

    def lose(path: str) -> None:
        (fleet / store.uuid / "sealed" / path).unlink()
        assert [one.record.path for one in store.verify_archive("s") if one.problems] == [path]
        assert [one.code for one in found(store)] == ["SK315"]

    lose(first.path)
    store.archive()
    assert store.archive(seal=True).published.missing == ()
    assert found(store) == []
    assert ids_there(store, fleet) == [one.decode() for one in ids]
    store.set_retention("s", archive=False)
    store.xtrim("s", maxlen=50, approximate=False)
    sealed = [one.record for one in manifest_of(store, fleet).segments if one.sealed]
    lose(sealed[0].path)
    assert store.archive(seal=True).published.missing == (sealed[0],)
    assert all(not one.problems for one in store.verify_archive())
    assert ids_there(store, fleet)[-50:] == [one.decode() for one in ids[-50:]]


def test_sealed_segments_that_are_there_are_found_with_one_request(
    store: Store, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        store.xadd(f"s{number}", {"n": "1"})
    store.archive(to=fleet, seal=True)
    asked: list[str] = []
    monkeypatch.setattr(FolderObjects, "size", lambda _, name: asked.append(name))
    store.archive(seal=True)
    assert asked == []


def test_a_restored_backup_does_not_overwrite_the_archive(
    store: Store, fleet: Path, tmp_path: Path
) -> None:
    ids = fill(store, 300)
    store.xtrim("s", maxlen=100)
    store.archive(to=fleet)
    backup(store.path, tmp_path / "old")
    store.xtrim("s", maxlen=0)
    store.archive()
    with streamkeep.open(tmp_path / "old") as old:
        assert shown(old) == ids  # the backup reads its segments where they are
        with pytest.raises(errors.StoreError, match="another copy of the store publishes"):
            old.archive(seal=True)
        assert old.archive(to=tmp_path / "own", seal=True).published.sealed_entries >= 100
        assert shown(old) == ids
    assert len(manifest_of(store, fleet).segments) == 2


def test_a_deleted_stream_in_sealed_segments_is_named_again_after_a_lost_manifest(
    store: Store, fleet: Path
) -> None:
    fill(store, 10)
    store.archive(to=fleet, seal=True)
    store.delete("s")
    shutil.rmtree(fleet / store.uuid / "manifests")
    store.archive()
    (stream,) = manifest_of(store, fleet).streams.values()
    assert (stream.number, stream.key, stream.exists) == (1, b"s", False)


def test_an_erasure_reaches_segments_of_a_backup_that_has_none_on_its_disk(
    fleet: Path, tmp_path: Path
) -> None:
    with streamkeep.open(tmp_path / "lost") as store:
        ids = fill(store, 100)
        store.xtrim("s", maxlen=0)
        store.archive(to=fleet)
        backup(store, tmp_path / "copy")
    with streamkeep.open(tmp_path / "copy") as copy:
        assert copy.erase("s", ids.pop(3)) == 1
        assert shown(copy) == ids
        assert ids_there(copy, fleet) == [one.decode() for one in ids]


def test_history_needs_the_object_only_if_the_file_is_gone(
    store: Store, fleet: Path, tmp_path: Path
) -> None:
    ids = fill(store, 100)
    store.xtrim("s", maxlen=0)
    store.archive(to=fleet)
    (path,) = fleet.rglob("*.seg")
    kept = path.read_bytes()
    segment_files_of(store).close()
    path.unlink()
    with pytest.raises(errors.MissingSegmentError, match="neither on the disk nor at file://"):
        shown(store)
    assert [one.code for one in found(store)] == ["SK301"]
    away = fleet.rename(tmp_path / "away")
    told = run("range", store.path, "s", "--history", status=4).stderr
    assert ("no archive; next: mount the disk" in told, "fsck" in told) == (True, False)
    away.rename(fleet)
    copy = tmp_path / "copy.seg"
    copy.write_bytes(kept)
    assert next(store.adopt_segments(copy)).record is not None
    assert shown(store) == ids
    store.archive()
    assert path.read_bytes() == kept
    assert segments(store) == []


def test_a_damaged_segment_is_not_published(store: Store, fleet: Path, tmp_path: Path) -> None:
    fill(store, 100)
    store.xtrim("s", maxlen=0)
    store.archive()
    (path,) = segments(store)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    segment_files_of(store).close()
    with pytest.raises(errors.CorruptionError, match="checksum"):
        store.archive(to=fleet)
    assert path.exists()
    setting = store.remote_archive()
    assert setting is not None
    assert setting.version == len(list(tmp_path.rglob("store.json"))) == 0
    data[40] ^= 1
    path.write_bytes(data)


def test_fsck_says_when_the_archive_there_is_not_what_was_written(
    store: Store, fleet: Path
) -> None:
    fill(store, 100)
    store.xtrim("s", maxlen=0)
    store.archive(to=fleet)
    head = fleet / store.uuid / "store.json"
    old = head.read_bytes()
    for _ in range(2):
        fill(store, 10)
        store.archive(seal=True)
    head.write_bytes(old)
    assert [one.code for one in found(store)] == ["SK315"]
    members = {**json.loads(old), "version": 9}
    head.write_bytes(json.dumps(members).encode())
    assert [one.code for one in found(store)] == ["SK316"]
    head.unlink()
    assert store.archive(seal=True).published.uploaded == 0  # the segment is still there
    assert found(store) == []


def test_a_lost_store_is_made_again_from_its_archive(
    store: Store, fleet: Path, tmp_path: Path
) -> None:
    ids = fill(store, 300)
    store.xtrim("s", maxlen=100)
    store.archive(to=fleet, seal=True)
    place = f"{fleet.as_uri()}/{store.uuid}"
    with streamkeep.open(tmp_path / "again") as again:
        adopted = list(again.adopt_segments(place))
        assert sum(one.record.entries for one in adopted if one.record) == 300
        assert shown(again) == ids
        assert [one.record for one in again.adopt_segments(place)] == [None, None]
        with pytest.raises(errors.ArgumentError, match="a slash and a UUID"):
            list(again.adopt_segments(fleet.as_uri()))


@pytest.mark.parametrize("as_uri", [False, True])
def test_a_restored_store_takes_what_an_erasure_has_rewritten(
    open_store: Open, fleet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, as_uri: bool
) -> None:
    store = open_store(node_max_entries=10)
    ids = fill(store, 300)
    store.xtrim("s", maxlen=100)
    store.archive(to=fleet, seal=True)
    backup(store, tmp_path / "earlier")
    store.erase("s", ids[7])
    place = fleet / store.uuid
    with streamkeep.open(tmp_path / "earlier") as earlier:
        there = place.as_uri() if as_uri else place
        with pytest.raises(errors.CommandError, match=r"that is lost, .* remove"):
            list(earlier.adopt_segments(there))
        earlier.archive(to=tmp_path / "new")
        earlier.drop_segments("s", before=ids[200])
        assert [one.record.erased for one in earlier.adopt_segments(there) if one.record] == [0]
        assert "it is left out: it is a copy of entries that were live" in caplog.text
        assert shown(earlier) == [one for one in ids if one != ids[7]]


@pytest.mark.parametrize(
    ("problem", "damaged"),
    [("not archived yet", False), ("overlaps with", False), ("overlaps with", True)],
)
def test_a_sealed_segment_that_does_not_fit_is_an_error_after_the_others_were_adopted(
    open_store: Open, fleet: Path, tmp_path: Path, problem: str, damaged: bool
) -> None:
    store = open_store(node_max_entries=10)
    ids = {key: fill(store, 30, key) for key in ("s", "t")}
    store.archive(to=fleet, seal=True)
    place = f"{fleet.as_uri()}/{store.uuid}"
    with streamkeep.open(tmp_path / "again") as again:
        again.set_retention("s", archive=True)
        again.xadd("s", {"n": "0"}, id=ids["s"][0])
        again.xtrim("s", maxlen=0, approximate=False)
        if problem == "overlaps with":
            again.archive()
        if damaged:
            path = again.segment_path(again.archived_segments("s")[0])
            path.write_bytes(bytes(20) + path.read_bytes()[20:])
        with pytest.raises(errors.CommandError, match=problem):
            list(again.adopt_segments(place))
        assert shown(again, "t") == ids["t"]


def test_a_deleted_stream_of_the_same_key_keeps_no_other_out(
    store: Store, fleet: Path, tmp_path: Path
) -> None:
    for count in (7, 9):
        store.set_retention("s", archive=True)
        store.xadd_many("s", [{"n": count}] * count, ids=[f"{n}-0" for n in range(1, count + 1)])
        store.xtrim("s", maxlen=0)
        store.archive(to=fleet)
        if count == 7:
            store.delete("s")
    ids = fill(store, 30, "t")
    store.xtrim("t", maxlen=0)
    store.archive()
    with streamkeep.open(tmp_path / "again") as again:
        with pytest.raises(errors.CommandError, match=r"segments/1-s/.* does not fit"):
            list(again.adopt_segments(f"{fleet.as_uri()}/{store.uuid}"))
        assert again.xrange("s", history=True) == store.xrange("s", history=True)
        assert shown(again, "t") == ids


@pytest.mark.parametrize("count", [1, 30])
def test_what_was_erased_from_a_sealed_segment_is_left_out_when_it_is_adopted_again(
    open_store: Open, fleet: Path, tmp_path: Path, count: int
) -> None:
    store = open_store(node_max_entries=10)
    ids = {key: fill(store, 30, key) for key in ("s", "t")}
    store.archive(to=fleet, seal=True)
    place = f"{fleet.as_uri()}/{store.uuid}"
    with streamkeep.open(tmp_path / "again") as again:
        list(again.adopt_segments(place))
        again.erase("s", *ids["s"][:count])
        again.drop_segments("t")
        assert [one.record is None for one in again.adopt_segments(place)] == [True, False]
        assert shown(again) == ids["s"][count:]
        assert shown(again, "t") == ids["t"]


def test_a_store_is_made_again_from_an_archive_that_has_replaced_a_part_of_sealed_segments(
    open_store: Open, fleet: Path, tmp_path: Path
) -> None:
    store = open_store(node_max_entries=10)
    ids = fill(store, 100)
    store.archive(to=fleet, seal=True)
    store.xtrim("s", maxlen=60, approximate=False)
    store.trim_range("s", ids[63], ids[82])  # one node of them is archived
    store.archive(seal=True)
    assert len(manifest_of(store, fleet).segments) == 3
    store.rename("s", "later")
    store.archive()
    place = f"{fleet.as_uri()}/{store.uuid}"
    with streamkeep.open(tmp_path / "again") as again:
        assert list(again.adopt_segments(place))
        assert list(again.scan_iter()) == [b"later"]
        assert shown(again, "later") == ids
        assert {one.record for one in again.adopt_segments(place)} == {None}
        assert shown(again, "later") == ids


def test_a_renamed_stream_is_adopted_under_its_present_key(
    store: Store, fleet: Path, tmp_path: Path
) -> None:
    ids = fill(store, 50, "old")
    store.xtrim("old", maxlen=0)
    store.archive(to=fleet)
    store.rename("old", "new")
    ids += fill(store, 50, "new")
    store.xtrim("new", maxlen=0)
    store.archive()
    with streamkeep.open(tmp_path / "again") as again:
        list(again.adopt_segments(f"{fleet.as_uri()}/{store.uuid}"))
        assert shown(again, "new") == ids
        assert list(again.scan_iter()) == [b"new"]


def test_local_copies_that_cannot_be_removed_are_an_error_of_the_store(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"

    def fails(folder: Folder, name: str) -> bool:
        if name.endswith(".seg"):
            raise OSError(errno.EIO, "simulated")
        return remove(folder, name)

    with streamkeep.open(path) as store:
        ids = fill(store, 600)
        store.xtrim("s", maxlen=400)
        remove = Folder.remove
        with monkeypatch.context() as broken:
            broken.setattr(Folder, "remove", fails)
            with pytest.raises(errors.StoreError, match="the system refuses"):
                store.archive(to=fleet)
        assert shown(store) == ids
        assert store.archive().published.freed_bytes > 0
        assert shown(store) == ids


def test_objects_in_a_folder_are_written_as_a_whole(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path.as_uri())
    objects.put("a/b", lambda offset, size: b"12345"[offset : offset + size], 5)
    assert objects.names("") == objects.names("a") == ["a/b"]
    assert objects.read("a/b", 1, 3) == b"234"
    assert objects.size("a/b") == 5
    assert objects.size("nothing") is None
    assert objects.folders() == ["a"]
    with pytest.raises(FileNotFoundError):
        objects.get("nothing")
    (tmp_path / "a" / "b").unlink()
    (tmp_path / "a" / "b").mkdir()
    with pytest.raises(errors.UnreachableError, match="directory"):
        objects.get("a/b")


def test_a_folder_whose_name_is_not_utf_8_is_that_folder(tmp_path: Path) -> None:
    place = os.fsdecode(os.fsencode(tmp_path) + b"/m\xfft %")
    os.mkdir(place)
    for uri in (place, Path(place).as_uri(), f"file://{place.replace('%', '%25')}"):
        put_bytes(open_objects(uri), "a", b"1")
        assert (Path(place) / "a").read_bytes() == b"1"
        (Path(place) / "a").unlink()
    assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_is_bounded() -> None:
    cache = ChunkCache(3 * CHUNK_BYTES)
    for number in range(5):
        cache.put("a", number, bytes(CHUNK_BYTES))
    assert [cache.get("a", number) is None for number in range(5)] == [True, True] + [False] * 3
    cache.forget("a")
    assert cache.get("a", 4) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": 1}',
        b'{"format": "x"}',
        b'{"format": 1, "store": "x", "manifest": "../up"}',
    ],
)
def test_a_damaged_head_is_corruption(data: bytes) -> None:
    with pytest.raises(errors.CorruptionError, match="head"):
        decode_head(data, "head")


def test_a_setting_keeps_what_was_removed_and_a_damaged_one_is_corruption() -> None:
    setting = RemoteSetting("file:///x", "n", {}, 3)
    gone = Removed(2, 7, StreamId(1, 2), StreamId(3, (1 << 64) - 1))
    for one in (setting, setting._replace(removed=(gone,))):
        assert decode_setting(one.encode(), "meta") == one
    assert b"removed" not in setting.encode()
    for wrong in (1, [1], [[1, 2, [1, 2]]], [[1, 2, 3, 4]]):
        data = json.dumps({**setting._asdict(), "removed": wrong}).encode()
        with pytest.raises(errors.CorruptionError, match="meta"):
            decode_setting(data, "meta")


@pytest.mark.parametrize("erased", [b"5", b"[%d]" % (1 << 70)])
def test_a_damaged_manifest_is_corruption(erased: bytes) -> None:
    stream = RemoteStream(1, b"s", True, StreamId(0, 0), 0, 0, StreamId(0, 0), ())
    lines = zstandard.ZstdDecompressor().decompress(encode_manifest(Manifest({1: stream}, ())))
    damaged = zstandard.ZstdCompressor().compress(lines.replace(b"[]", erased))
    for data in (damaged, b"nothing of zstd"):
        with pytest.raises(errors.CorruptionError, match="manifest"):
            decode_manifest(data, "manifest")
