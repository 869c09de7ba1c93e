"""A store folder is data from outside: nothing in it leads a write out. Files that are shared."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import streamkeep
from cli_runner import run
from inside import tickets_in, wait_table_of
from other_users import ANN, Failed, as_root, as_user, common_folder, contents_below
from patience import handles_below, thread_of, wait_until
from streamkeep import Store, UntrustedFileError
from streamkeep.engine.system import files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import SharedFile, moves_blocks
from streamkeep.engine.whole_store.compact import compact
from streamkeep.recovery.backups.backup import backup
from streamkeep.recovery.fsck.store import check
from streamkeep.recovery.salvage.repair import repair
from tiers import pairs_of

VICTIM = b"ssh-ed25519 AAAA: content that must stay\n" * 300

FILES = [
    "data.mdb",
    "lock.mdb",
    "steady",
    "journal/head",
    "journal/spare",
    "journal/new",
    "journal/000000000001.skj",
    "waiters/board",
    "archive/lock",
]
FOLDERS = ["journal", "waiters", "archive", "staging", "compact.new", "compact.done"]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    victim = tmp_path / "victim"
    victim.write_bytes(VICTIM)
    return victim


def plant(kind: str, place: Path, victim: Path) -> None:
    """Put something else in the place of a file."""
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    if kind == "symlink":
        place.symlink_to(victim)
    elif kind == "dangling":
        place.symlink_to(victim.with_name("not-there"))
    elif kind == "hard link":
        os.link(victim, place)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as one:
            before = Path.cwd()
            os.chdir(place.parent)  # the name of a socket has to be short
            try:
                one.bind(place.name)
            finally:
                os.chdir(before)


@pytest.fixture
def untouched(path: Path, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Note what there is when it is called first; when the test ends, it must be as it was."""
    before: list[dict[str, tuple[int, int, bytes]]] = []
    yield lambda: before.append(contents_below(tmp_path))
    assert before
    assert contents_below(tmp_path) == before[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    pairs_of(FILES, ["symlink", "dangling", "hard link", "pipe", "socket", "folder"]),
)
def test_no_file_of_another_kind_is_opened_and_nothing_is_changed(
    path: Path, victim: Path, untouched: Callable[[], None], name: str, kind: str
) -> None:
    plant(kind, path / name, victim)
    untouched()
    with pytest.raises(UntrustedFileError, match=str(path / name)) as error:
        streamkeep.open(path)
    assert "remove it" in str(error.value) or "cp -r" in str(error.value)
    with pytest.raises(UntrustedFileError):
        compact(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    pairs_of(
        ["data.mdb", "lock.mdb", "steady", "journal/head"],
        ["symlink", "dangling", "pipe", "socket", "folder"],
    ),
)
def test_neither_do_readers_and_checks(
    path: Path, victim: Path, untouched: Callable[[], None], name: str, kind: str
) -> None:
    plant(kind, path / name, victim)
    untouched()
    with pytest.raises(UntrustedFileError, match=str(path / name)):
        streamkeep.open(path, readonly=True)
    with pytest.raises(UntrustedFileError, match=str(path / name)):
        list(check(path))
    with pytest.raises(UntrustedFileError, match=str(path / name)):
        repair(path, path.with_name("repaired"))
    with pytest.raises(UntrustedFileError, match=str(path / name)):
        backup(path, path.with_name("backup"))


@pytest.mark.parametrize("name", FOLDERS)
def test_no_folder_is_reached_through_a_link(
    path: Path, tmp_path: Path, untouched: Callable[[], None], name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for one in ("spare", "head.new", "000000000001.skj", "1-a.seg.tmp"):
        (outside / one).write_bytes(b"mine")
    shutil.rmtree(path / name, ignore_errors=True)
    (path / name).symlink_to(outside)
    untouched()
    with pytest.raises(UntrustedFileError, match=str(path / name)):
        streamkeep.open(path)


def test_a_prepared_compaction_is_not_taken_through_a_link(
    path: Path, tmp_path: Path, untouched: Callable[[], None]
) -> None:
    shutil.copytree(path, tmp_path / "other", ignore=shutil.ignore_patterns("waiters"))
    (path / "compact.ready").symlink_to(tmp_path / "other")
    untouched()
    with pytest.raises(UntrustedFileError, match=r"compact\.ready"):
        streamkeep.open(path)


@pytest.mark.parametrize("name", ["data.mdb", "steady", "journal", "journal/000000000001.skj"])
def test_nor_is_what_is_in_it(
    path: Path, victim: Path, untouched: Callable[[], None], name: str
) -> None:
    ready = path / "compact.ready"
    (ready / "journal").mkdir(parents=True)
    shutil.copy(path / "data.mdb", ready)
    shutil.copy(path / "steady", ready)
    if name == "journal":
        (ready / name).rmdir()
    plant("symlink", ready / name, victim)
    untouched()
    with pytest.raises(UntrustedFileError, match=name):
        streamkeep.open(path)


def test_the_folder_of_a_store_may_be_reached_through_a_link(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    with streamkeep.open(link) as store:
        store.xadd("s", {"f": "v"})
        assert store.xlen("s") == 6
    assert [str(one) for one in check(link)] == []


def test_a_door_that_is_a_link_gets_no_bytes(
    path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put there while the store is in use, and the board names it."""
    with streamkeep.open(path) as store:
        done: list[object] = []
        reader = thread_of(lambda: done.append(store.xread({"s": "$"}, block=0)))
        wait_table = wait_table_of(store)
        wait_until(lambda: tickets_in(wait_table) == 1)
        (bell,) = (one for one in (path / "waiters").iterdir() if one.name != "board")
        bell.rename(path / "kept")
        bell.symlink_to(victim)
        store.xadd("s", {"f": "v"})
        assert victim.read_bytes() == VICTIM
        reader.join()  # who finds out by itself, a little later
        assert done
        bell.unlink()
        (path / "kept").unlink()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "folder", "regular"])
def test_a_door_is_a_named_pipe_when_a_store_is_opened(
    path: Path, victim: Path, untouched: Callable[[], None], kind: str
) -> None:
    bell = path / "waiters" / f"{7:016x}"
    if kind == "regular":
        bell.write_bytes(b"")
    else:
        plant(kind, bell, victim)
    untouched()
    with pytest.raises(UntrustedFileError, match="but a store has a named pipe"):
        streamkeep.open(path)


def test_a_new_file_of_the_journal_is_not_made_of_a_link(path: Path, victim: Path) -> None:
    """It is put there while the store is in use."""
    with streamkeep.open(path, sync="none") as store:
        (path / "journal" / "new").symlink_to(victim)
        with pytest.raises(UntrustedFileError, match="journal/new: a symbolic link"):
            for _ in range(30):
                store.xadd("s", {"pad": "x" * 1_000_000})
        (path / "journal" / "new").unlink()
        store.xadd("s", {"pad": "x" * 1_000_000})
    assert victim.read_bytes() == VICTIM
    assert [str(one) for one in check(path)] == []


def segment_of(path: Path) -> Path:
    (segment,) = (path / "archive").glob("*/*.seg")
    return segment


def test_a_segment_that_is_a_link_is_not_read(path: Path) -> None:
    segment = segment_of(path)
    segment.rename(path.with_name("elsewhere.seg"))
    segment.symlink_to(path.with_name("elsewhere.seg"))
    with streamkeep.open(path) as store, pytest.raises(UntrustedFileError, match=segment.name):
        store.xrange("s", history=True)
    assert [one.code for one in check(path)] == ["SK302"]
    with pytest.raises(UntrustedFileError, match=segment.name):
        repair(path, path.with_name("repaired"))
    with pytest.raises(UntrustedFileError, match=segment.name):
        backup(path, path.with_name("backup"))
    assert sorted(one.name for one in path.parent.iterdir()) == ["elsewhere.seg", "store"]


def test_no_segment_is_written_or_removed_through_a_link(path: Path, tmp_path: Path) -> None:
    folder = segment_of(path).parent
    outside = tmp_path / "outside"
    folder.rename(outside)
    (outside / "1.seg.tmp").write_bytes(b"mine")
    folder.symlink_to(outside)
    before = contents_below(outside)
    with streamkeep.open(path) as store:
        store.xtrim("s", maxlen=1, approximate=False)
        with pytest.raises(UntrustedFileError, match=folder.name):
            store.archive()
        assert len(store.drop_segments("s")) == 1
    with streamkeep.open(path):
        pass  # which would remove the file now
    assert contents_below(outside) == before


def test_a_segment_may_have_several_names(path: Path, tmp_path: Path) -> None:
    """So backups share segments with those before them."""
    backup(path, tmp_path / "backup")
    first = segment_of(tmp_path / "backup").stat()
    report = backup(path, tmp_path / "backup")
    assert (report.kept_segments, report.copied_segments) == (1, 0)
    assert segment_of(tmp_path / "backup").stat().st_ino == first.st_ino
    os.link(segment_of(path), tmp_path / "another-name")
    with streamkeep.open(path) as store:
        assert len(store.xrange("s", history=True)) == 51
    assert [str(one) for one in check(path)] == []


def test_an_earlier_backup_leads_nowhere(path: Path, victim: Path, tmp_path: Path) -> None:
    backup(path, tmp_path / "backup")
    plant("symlink", tmp_path / "backup" / "steady", victim)
    with pytest.raises(UntrustedFileError, match="backup/steady"):
        backup(path, tmp_path / "backup")
    assert victim.read_bytes() == VICTIM


@pytest.mark.parametrize("kind", ["symlink", "file"])
def test_the_folder_in_which_a_backup_is_made_is_one(path: Path, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_bytes(b"mine")
    if kind == "symlink":
        (tmp_path / ".backup.backup").symlink_to(outside)
    else:
        (tmp_path / ".backup.backup").write_bytes(b"mine")
    with pytest.raises(UntrustedFileError, match=r"\.backup\.backup"):
        backup(path, tmp_path / "backup")
    assert contents_below(outside) == {"mine": contents_below(outside)["mine"]}


def test_an_export_follows_no_link_below_its_folder(
    path: Path, victim: Path, tmp_path: Path
) -> None:
    target = tmp_path / "export" / segment_of(path).relative_to(path / "archive")
    target.parent.mkdir(parents=True)
    target.with_name(target.name + ".tmp").symlink_to(victim)
    with streamkeep.open(path) as store:
        assert list(store.export_segments(tmp_path / "export", "s")) == [target]
    assert victim.read_bytes() == VICTIM
    assert target.read_bytes() == segment_of(path).read_bytes()


@pytest.mark.parametrize("words", [["dump"], ["repair", "--dry-run"]])
def test_the_command_line_refuses_planted_stores(
    path: Path, victim: Path, untouched: Callable[[], None], words: list[str]
) -> None:
    plant("symlink", path / "steady", victim)
    untouched()
    command, *options = words
    assert "steady: a symbolic link" in run(command, path, *options, status=3).stderr


@pytest.mark.parametrize("name", ["../victim", "a/../../victim", "", "/etc/passwd", "a//b", "."])
def test_no_name_leads_out_of_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "victim").write_bytes(VICTIM)
    folder = Folder(tmp_path / "store")
    for call in (folder.open, folder.remove, folder.read, folder.exists, folder.remove_folder):
        with pytest.raises(UntrustedFileError, match="not the name of a file"):
            call(name)


def test_a_folder_that_is_not_there_is_as_one_in_which_there_is_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path).folder("missing", missing_ok=True)
    assert folder.names() == []
    assert not folder.exists("a")
    assert folder.size("a") == 0
    with pytest.raises(FileNotFoundError):
        folder.open("a", os.O_RDWR | os.O_CREAT)
    assert not folder.remove("a")
    assert list(tmp_path.iterdir()) == []


def test_the_names_of_the_open_folder_are_synced_wherever_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "below").mkdir(parents=True)
    folder = Folder(tmp_path / "a", outside=True)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a" / "below").mkdir(parents=True)
    synced: list[str] = []
    monkeypatch.setattr(
        files, "sync_folder", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    folder.sync()
    folder.sync("below")
    folder.make_folder("new")
    moved = str(tmp_path / "b")
    assert synced == [moved, f"{moved}/below", moved]


def test_the_name_of_a_folder_is_synced_if_its_maker_was_killed_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    folder = Folder(tmp_path, outside=True)
    synced: list[str] = []
    monkeypatch.setattr(
        files, "sync_folder", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    folder.make_folder("made/below")
    assert synced == [str(tmp_path), str(tmp_path / "made")]
    monkeypatch.setattr(os, "listdir", Mock(side_effect=AssertionError("a big one is not listed")))
    folder.make_folder("made")
    assert len(synced) == 2


def test_no_descriptor_is_left_open(path: Path) -> None:
    with streamkeep.open(path) as store:
        store.xadd("s", {"f": "v"})
    for readonly in (False, True, True):
        with Store(path, readonly=readonly) as store:
            assert store.xlen("s") > 0
        assert handles_below(path) == []  # though the closed store is still there


def test_what_one_process_writes_another_sees(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    one, other = (os.open(path, os.O_RDWR) for _ in range(2))
    writer, reader = SharedFile(one), SharedFile(other)
    writer.write(100, b"some bytes")
    writer.set_word(511, (1 << 64) - 2)
    assert reader.data[100:110] == b"some bytes"
    assert memoryview(reader.data).cast("Q")[511] == (1 << 64) - 2
    assert path.read_bytes() == reader.data[:]
    for shared in (writer, reader):
        shared.close()
        os.close(shared.handle)


def test_only_file_systems_that_overwrite_in_place_are_written_through_a_map() -> None:
    """Of an unknown file system, and of the one of /proc, the worse is assumed."""
    shared_memory = Path("/dev/shm")
    if not os.path.ismount(shared_memory):
        pytest.skip("there is no file system in memory here")
    for path, moves in ((shared_memory, False), (Path("/proc"), True)):
        handle = os.open(path, os.O_RDONLY)
        assert moves_blocks(handle) == moves, path
        os.close(handle)


@as_root
def test_a_folder_of_the_archive_that_cannot_be_listed_is_not_taken_for_empty() -> None:
    def use(path: Path) -> None:
        with streamkeep.open(path, sync="none") as store:
            store.set_retention("s", archive=True)
            store.xadd("s", {"f": "v"})
            store.xtrim("s", maxlen=0, approximate=False)
            store.archive()
        (path / "archive/1-s").chmod(0)
        with streamkeep.open(path) as store, pytest.raises(PermissionError, match="1-s"):
            store.archive()
        repair(path, path.with_name("out"))

    with common_folder() as folder, pytest.raises(Failed, match="StoreError: 1-s: no permission"):
        as_user(ANN, [], lambda: use(folder / "s"))
