"""Every file of a store has the mode and the group of the store, from each user who makes it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from other_users import ANN, BOB, EVE, TEAM, Failed, as_root, as_user, common_folder, rights_below
from stopped import child_of, status_of
from streamkeep import ArgumentError
from streamkeep.engine.whole_store.compact import compact
from streamkeep.recovery.backups.backup import backup
from streamkeep.recovery.copies.shipping import ship
from streamkeep.recovery.fsck.store import check
from streamkeep.recovery.salvage.repair import repair
from tiers import slow_but

SHARED = {("folder", "2770", TEAM), ("file", "660", TEAM)}
BOTH = f"{ANN},{BOB}"  # each must trust the other: this machine knows neither


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def use_everything(path: Path, **options: Any) -> None:
    """Have a store make each file that it can have."""
    with streamkeep.open(path, **options) as store:
        store.xgroup_create("s", "g", mkstream=True)
        for index in range(300):
            store.xadd("s", {"f": index})
        store.xreadgroup("g", "c", {"s": ">"}, count=2)  # a lease
        store.set_retention("s", archive=True)
        store.xtrim("s", maxlen=10, approximate=False)
        store.archive()
        store.xread({"s": "$"}, block=1)  # the table of waiting calls, and a pipe
        backup(store, path.with_name("backup"))
    compact(path)
    with streamkeep.open(path) as store:
        store.erase("s", store.xrange("s")[0].id)


def test_a_process_that_may_not_set_the_setgid_bit_makes_a_store(
    tmp_path: Path, umask: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The units in examples/deploy/systemd have RestrictSUIDSGID, which forbids it."""
    change = os.fchmod

    def restricted(handle: int, mode: int) -> None:
        if mode & stat.S_ISGID:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        change(handle, mode)

    monkeypatch.setattr(os, "fchmod", restricted)
    umask(0o007)
    use_everything(tmp_path / "s")
    streamkeep.open(tmp_path / "t", mode=0o660).close()
    for name in ("s", "t", "backup"):
        found = {(kind, rights) for kind, rights, _ in rights_below(tmp_path / name)}
        assert found == {("folder", "770"), ("file", "660")}


@pytest.mark.parametrize(
    ("mask", "folder", "file"),
    slow_but(
        [(0o022, "755", "644"), (0o077, "700", "600"), (0o002, "2775", "664"), (0, "2775", "664")],
        (0o022, "755", "644"),
    ),
)
def test_the_umask_of_the_creator_decides(
    tmp_path: Path, umask: Callable[[int], int], mask: int, folder: str, file: str
) -> None:
    path = tmp_path / "store"
    umask(mask)
    streamkeep.open(path).close()
    umask(0o077)  # from now on the umask plays no part
    use_everything(path)
    for copy in (path, tmp_path / "backup"):
        kinds = {(kind, mode.replace("275", "75")) for kind, mode, _ in rights_below(copy)}
        assert kinds <= {
            ("folder", folder.replace("275", "75")),
            ("file", file),
            ("folder", f"2{folder}"),
        }


@pytest.mark.parametrize("mode", slow_but([0o600, 0o640, 0o660], 0o660))
def test_a_mode_that_the_caller_chose_is_the_mode_of_all_files(
    tmp_path: Path, umask: Callable[[int], int], mode: int
) -> None:
    path = tmp_path / "store"
    umask(0o077)
    use_everything(path, mode=mode)
    data = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(bytes(8192) + data[8192:])  # only a scan finds the rest
    (path / "steady").write_bytes(bytes(8192))
    repair(path, tmp_path / "repaired")
    with streamkeep.open(tmp_path / "repaired") as store:
        store.xadd("s", {"f": "v"})
    for copy in (path, tmp_path / "backup", tmp_path / "repaired"):
        found = rights_below(copy)
        assert {one for kind, one, _ in found if kind == "file"} == {f"{mode:o}"}, copy
        folder = mode | (mode & 0o444) >> 2 | (0o2000 if mode & 0o060 else 0)
        assert {one for kind, one, _ in found if kind == "folder"} == {f"{folder:o}"}, copy


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_archives_and_copies_in_a_folder_have_the_mode_of_the_store(
    tmp_path: Path, umask: Callable[[int], int], mode: int
) -> None:
    umask(0o022)
    (tmp_path / "public").mkdir()
    with streamkeep.open(tmp_path / "store", mode=mode) as store:
        store.set_retention("s", archive=True)
        store.xadd_many("s", [{"f": index} for index in range(300)])
        store.xtrim("s", maxlen=10)
        for place in (tmp_path / "new", tmp_path / "public"):
            store.archive(to=place, seal=True)
            ship(store, str(place / "copy"))
    folder = mode | (mode & 0o444) >> 2 | (0o2000 if mode & 0o060 else 0)
    for place in (tmp_path / "new", tmp_path / "public" / store.uuid, tmp_path / "public" / "copy"):
        assert {one[:2] for one in rights_below(place)} == {
            ("folder", f"{folder:o}"),
            ("file", f"{mode:o}"),
        }, place
    assert tmp_path.joinpath("public").stat().st_mode & 0o7777 == 0o755


def test_a_folder_that_was_made_before_gives_its_mode(
    tmp_path: Path, umask: Callable[[int], int]
) -> None:
    umask(0o077)
    (tmp_path / "made").mkdir()
    (tmp_path / "made").chmod(0o2750)
    with streamkeep.open(tmp_path / "made") as store:
        store.xadd("s", {"f": "v"})
    (tmp_path / "chosen").mkdir(0o755)
    with streamkeep.open(tmp_path / "chosen", mode=0o600) as store:
        store.xadd("s", {"f": "v"})
    assert {one[:2] for one in rights_below(tmp_path / "made")} == {
        ("folder", "2750"),
        ("file", "640"),
    }
    assert {one[:2] for one in rights_below(tmp_path / "chosen")} == {
        ("folder", "700"),
        ("file", "600"),
    }


def test_a_private_store_in_a_public_folder_stays_private(tmp_path: Path) -> None:
    """So were all stores before they had modes: whatever their folder was."""
    path = tmp_path / "store"
    streamkeep.open(path, mode=0o600).close()
    path.chmod(0o755)
    shutil.rmtree(path / "journal")
    with streamkeep.open(path) as store:
        store.xadd("s", {"f": "v"})
    assert {mode for kind, mode, _ in rights_below(path) if kind == "file"} == {"600"}


@pytest.mark.parametrize("mode", [0o400, 0o666, 0o770, 0o602, -1, 0o4600])
def test_a_mode_that_no_store_can_have(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ArgumentError, match="next: choose 0o600"):
        streamkeep.open(tmp_path / "store", mode=mode)
    assert not (tmp_path / "store").exists()


def add(path: Path, count: int = 1) -> int:
    with streamkeep.open(path) as store:
        for index in range(count):
            store.xadd("s", {"f": index})
        return int(store.xlen("s"))


def read(path: Path) -> int:
    with streamkeep.open(path, readonly=True) as store:
        return len(store.xrange("s"))


def archive_all(path: Path) -> int:
    with streamkeep.open(path) as store:
        store.set_retention("s", archive=True)
        store.xtrim("s", maxlen=0)
        return int(store.archive().entries)


def cut_off(path: Path) -> None:
    """Write, and lose the power: the data file is that of before."""
    with streamkeep.open(path) as store:
        before = (path / "data.mdb").read_bytes()
        store.xadd("s", {"f": "late"})
        copy = path.with_name("copy")
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("waiters", "leases", "head"))
        (copy / "data.mdb").write_bytes(before)


@as_root
def test_two_users_take_turns_as_writers_archivers_and_recoverers() -> None:
    with common_folder() as folder:
        path = folder / "store"
        ann = partial(as_user, ANN, [TEAM], trust=BOTH)
        bob = partial(as_user, BOB, [TEAM], trust=BOTH)
        ann(partial(use_everything, path, mode=0o660, group=TEAM))
        for turn in range(1, 4):
            assert (bob if turn % 2 else ann)(partial(add, path)) == 9 + turn
        assert bob(partial(archive_all, path)) > 0
        assert ann(partial(add, path, 400)) == 400
        assert ann(partial(archive_all, path)) == 400
        bob(lambda: compact(path))
        assert rights_below(path) == rights_below(folder / "backup") == SHARED
        bob(partial(backup, path, folder / "another"))
        assert rights_below(folder / "another") == SHARED
        assert bob(lambda: list(map(str, check(path)))) == []


@as_root
def test_a_member_of_the_group_recovers_what_the_owner_wrote() -> None:
    with common_folder() as folder:
        path = folder / "store"
        ann = partial(as_user, ANN, [TEAM], trust=BOTH)
        ann(lambda: streamkeep.open(path, mode=0o660, group=TEAM).close())
        ann(partial(cut_off, path))
        copy = folder / "copy"
        for one in [copy, *copy.rglob("*")]:
            os.chown(one, ANN, TEAM)
            one.chmod(0o2770 if one.is_dir() else 0o660)
        assert as_user(BOB, [TEAM], partial(add, copy), trust=BOTH) == 2
        assert rights_below(copy) == SHARED
        assert ann(partial(add, copy)) == 3


@as_root
@pytest.mark.slow
def test_two_users_write_at_the_same_time() -> None:
    """Each meets files at the moment when the other makes them."""
    with common_folder() as folder:
        path = folder / "store"
        as_user(ANN, [TEAM], lambda: streamkeep.open(path, mode=0o660, group=TEAM).close())
        children = []
        for user in (ANN, BOB, ANN, BOB):

            def work(user: int = user) -> None:
                for _ in range(5):
                    as_user(user, [TEAM], partial(add, path, 3), trust=BOTH)

            children.append(child_of(work))
        assert [status_of(one) for one in children] == [0] * 4
        assert as_user(BOB, [TEAM], partial(read, path), trust=BOTH) == 60
        assert rights_below(path) == SHARED


@as_root
@pytest.mark.slow
def test_a_run_as_root_does_not_lock_the_owner_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMKEEP_TRUST_OWNERS", str(ANN))
    with common_folder() as folder:
        path = folder / "store"
        as_user(ANN, [], partial(add, path, 300))
        assert archive_all(path) == 300
        compact(path)
        assert {one.stat().st_uid for one in path.rglob("*")} == {ANN}
        assert as_user(ANN, [], partial(add, path)) == 1


@as_root
@pytest.mark.parametrize(
    ("mode", "user", "groups", "trust", "expected"),
    slow_but(
        [
            (0o660, BOB, [TEAM], BOTH, "5"),
            (0o664, EVE, [], str(ANN), "5"),
            (0o640, BOB, [TEAM], str(ANN), "5"),
            (
                0o664,
                EVE,
                [],
                "",
                "UntrustedFileError: .*belongs to user 54001 .*; next: if you trust",
            ),
            (0o640, EVE, [], "", "StoreError: .*cannot open the folder: Permission denied"),
            (0o600, EVE, [], str(ANN), "StoreError: .*cannot open the folder: Permission denied"),
        ],
        (0o664, EVE, [], str(ANN), "5"),
    ),
)
def test_a_reader_of_another_user_reads_or_is_told_why_not(
    mode: int, user: int, groups: list[int], trust: str, expected: str
) -> None:
    with common_folder() as folder:
        path = folder / "store"

        def make() -> None:
            streamkeep.open(path, mode=mode, group=TEAM).close()
            add(path, 5)

        as_user(ANN, [TEAM], make)
        if expected == "5":
            assert as_user(user, groups, partial(read, path), trust=trust) == 5
        else:
            with pytest.raises(Failed, match=expected):
                as_user(user, groups, partial(read, path), trust=trust)


@as_root
@pytest.mark.parametrize("name", slow_but(["steady", "journal/head", "lock.mdb"], "steady"))
def test_a_file_that_lost_its_mode_is_named(name: str) -> None:
    with common_folder() as folder:
        path = folder / "store"

        as_user(ANN, [TEAM], lambda: streamkeep.open(path, mode=0o660, group=TEAM).close())
        (path / name).chmod(0o600)
        (path / name).touch()
        with pytest.raises(Failed) as caught:
            as_user(BOB, [TEAM], partial(add, path), trust=BOTH)
        told = str(caught.value)
        assert name in told or "no permission" in told
        assert "next: " in told


@as_root
def test_a_group_that_the_creator_is_not_in() -> None:
    told = "may not give the folder mode 0o2770 and group 54000"
    with common_folder() as folder, pytest.raises(Failed, match=told):
        as_user(EVE, [], lambda: streamkeep.open(folder / "store", group=TEAM))
