"""doctor: does this machine give a store what it needs, and is the installation complete?

Documentation of a file system says what it should do; a file on it shows what it does. Each check
uses files of its own in a temporary folder beside the store, and a second process where one
matters.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Final, Literal, NamedTuple

import click

import streamkeep
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE
from streamkeep.engine.store.opening import is_listed
from streamkeep.engine.system.modes import group_name
from streamkeep.engine.system.owners import user_name
from streamkeep.engine.system.pages import PAGE
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import count_text, time_text
from streamkeep.recovery.backups.backup import last_backup
from streamkeep.supported import install_hint
from streamkeep.tools.base import common, output
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import open_store

State = Literal["ok", "note", "wrong"]

_SYNCS: Final = 32
_SLOW_SYNC_MS: Final = 20.0
_FEW_FILES: Final = 256
_CHILD_S: Final = 30
_MOUNTS: Final = "/proc/self/mountinfo"
_ROOM: Final = "make room on the disk, or raise the quota of this user"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_LOCAL: Final = "use a folder on a local file system, such as ext4 or XFS"

# What is known of file systems: the state, and a sentence for people.
FILE_SYSTEMS: Final[dict[str, tuple[State, str]]] = {
    "ext4": ("ok", "overwrites blocks in place"),
    "xfs": ("ok", "overwrites blocks in place, except those that a copy by reflink shares"),
    "btrfs": (
        "ok",
        "copies blocks when they are written; a store turns that off for the files that it maps, "
        "so btrfs keeps no checksums of them (a store has its own)",
    ),
    "tmpfs": (
        "note",
        "is memory: all works, a sync costs nothing, and nothing outlives the machine",
    ),
    "ramfs": ("note", "is memory: nothing of it outlives the machine"),
    "overlay": (
        "note",
        "is the layer of a container: locks and syncs work, and all is gone with the container; "
        "mount a volume",
    ),
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "ceph"),
        ("wrong", "is a network file system: other machines do not see locks and maps in time"),
    ),
    "9p": (
        "wrong",
        "shares a folder of a host or of Windows: maps are not shared with the host and other "
        "guests, and a sync may not reach the disk (in WSL2, use the Linux disk, not /mnt/c)",
    ),
    "virtiofs": (
        "note",
        "shares a folder of a host: locks and maps hold in this guest only, so no other guest and "
        "not the host may use the store; the host decides what a sync is worth",
    ),
    "fuse": ("note", "is a program: it decides what locks, maps and syncs are worth"),
    "zfs": ("note", "copies blocks when they are written: a full disk can end a process by SIGBUS"),
    "vfat": ("wrong", "has no owners and no links"),
    "exfat": ("wrong", "has no owners and no links"),
}

# The other process: says which locks of the parent it could take, and writes into the shared map.
_OTHER: Final = """
import fcntl, mmap, sys
path = sys.argv[1]
with open(path, "r+b") as file:
    for lock in (fcntl.flock, fcntl.lockf):
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        print(lock.__name__)
    with mmap.mmap(file.fileno(), 4096) as data:
        data[100:105] = b"child"
"""


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        state: "wrong" if a store is not safe or does not work here; "note" for what to know.
        next: what to do; empty if there is nothing to do.
    """

    name: str
    state: State
    text: str
    next: str = ""


def examine(place: str | Path) -> Iterator[Check]:
    """Try what a store in the folder `place`, which may be a store, would need.

    Nothing remains of the files that it makes, in the folder that contains `place`, or in `place`
    itself where that is the root of another file system.

    """
    folder = Path(place).absolute()
    while not folder.is_dir():
        folder = folder.parent
    above = folder.parent
    same = above != folder and above.stat().st_dev == folder.stat().st_dev
    if same and os.access(above, os.W_OK):
        folder = above
    yield check_page_size(page_size_of(Path(place)))
    yield check_limits()
    yield check_file_system(file_system_of(folder))
    try:
        made = tempfile.TemporaryDirectory(prefix=".streamkeep-doctor-", dir=folder)
    except PermissionError:
        text = f"this user may make no files in {folder}, so locks, maps and syncs were not tried"
        yield Check("trials", "note", text, "run it as the owner of the folder")
        return
    except OSError as error:
        text = f"no file can be made in {folder}: {error.strerror or error}"
        yield Check("trials", "wrong", text, _ROOM if error.errno in _FULL else _LOCAL)
        return
    with made as name:
        for check in (check_sharing, check_blocks, check_names, check_syncs):
            try:
                yield check(Path(name))
            except OSError as error:
                told = check.__name__.removeprefix("check_").replace("_", " ")
                hint = _ROOM if error.errno in _FULL else _LOCAL
                yield Check(told, "wrong", f"{error.strerror or error}", hint)


# --- the machine --------------------------------------------------------------------------------


def check_page_size(stored: int = 0, page: int = PAGE) -> Check:
    """The pages of a store, if there is one, are those that LMDB uses on this system."""
    if not stored:
        return Check("page size", "ok", f"{page:,} bytes, as a store made here will have")
    if stored == page:
        return Check("page size", "ok", f"{page:,} bytes, of the system and of the store")
    text = f"{page:,} bytes; the store was made with pages of {stored:,}"
    hint = "on a system with such pages, run `streamkeep dump`, and here `streamkeep load`"
    return Check("page size", "wrong", text, hint)


def page_size_of(place: Path) -> int:
    """Return the size of the pages of the store at `place`; 0 if there is none that can be read."""
    with suppress(OSError):  # also of reading, where it is no file
        handle = os.open(place / DATA_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            metas = read_meta_pages(handle)
            return metas[-1].page_size if metas else 0
        finally:
            os.close(handle)
    return 0


def check_limits() -> Check:
    """The limits of the process let it map a store, and write to it."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    found = []
    if 0 <= files < _FEW_FILES:
        found.append(f"{files} open files")
    for name, what in ((resource.RLIMIT_FSIZE, "of a file"), (resource.RLIMIT_AS, "of memory")):
        most = resource.getrlimit(name)[0]
        if most != resource.RLIM_INFINITY:
            found.append(f"{most:,} bytes {what}")
    if not found:
        return Check("limits", "ok", f"{files:,} open files, no limit of file size and memory")
    hint = "raise them with `ulimit`, or LimitNOFILE=, LimitFSIZE= and LimitAS= of the unit"
    return Check("limits", "note", f"the process is limited to {', '.join(found)}", hint)


def file_system_of(folder: Path) -> str:
    """Return the type of the file system of a folder, as the kernel names it; "" if unknown."""
    found, length = "", -1
    place = os.fsencode(folder.resolve())
    with open(_MOUNTS, "rb") as mounts:
        for line in mounts:
            before, _, after = line.partition(b" - ")
            point = before.split(b" ")[4].decode("unicode_escape").encode("latin-1")
            inside = place == point or place.startswith(point.rstrip(b"/") + b"/")
            if inside and len(point) >= length:  # of two mounts at one place, the later one
                found, length = after.split(b" ", 1)[0].decode(), len(point)
    return found


def check_file_system(kind: str) -> Check:
    """What is known of the type of file system."""
    known = FILE_SYSTEMS.get(kind) or FILE_SYSTEMS.get(kind.partition(".")[0])
    if known is None:
        text = f"{kind or 'unknown'}: Streamkeep was not tried on it"
        return Check("file system", "note", text, "see what the other checks say")
    state, text = known
    return Check("file system", state, f"{kind} {text}", _LOCAL if state == "wrong" else "")


# --- the file system, tried ---------------------------------------------------------------------


def check_sharing(folder: Path) -> Check:
    """Locks of one process keep another out, and both see one map."""
    path = folder / "shared"
    path.write_bytes(bytes(PAGE))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), PAGE) as data:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        words = [sys.executable, "-I", "-c", _OTHER, str(path)]
        other = subprocess.run(words, capture_output=True, text=True, timeout=_CHILD_S)
        if other.returncode:
            last = (other.stderr.strip() or "no message").splitlines()[-1]
            return Check("sharing", "wrong", f"a second process failed: {last}", _LOCAL)
        taken = other.stdout.split()
        if taken:
            text = f"two processes hold the same lock at once ({', '.join(taken)})"
            return Check("sharing", "wrong", text, _LOCAL)
        if data[100:105] != b"child":
            text = "a process does not see what another writes into a map"
            return Check("sharing", "wrong", text, _LOCAL)
    return Check("sharing", "ok", "two processes exclude each other, and share a map")


def check_blocks(folder: Path) -> Check:
    """Blocks can be reserved, so that a full disk is an error when a file grows."""
    path = folder / "blocks"
    with open(path, "w+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, 1 << 20)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            text = f"no blocks can be reserved ({error.strerror})"
            return Check("blocks", "wrong", text, _LOCAL)
        granted = os.fstat(file.fileno()).st_blocks * 512
    if granted < 1 << 20:
        text = f"of 1 MiB that was reserved, the file system granted {granted:,} bytes"
        return Check("blocks", "note", text, "leave room on the disk")
    return Check("blocks", "ok", "can be reserved")


def check_names(folder: Path) -> Check:
    """A file can be renamed over another, and have a second name, which backups use."""
    for name in ("one", "two"):
        (folder / name).write_bytes(name.encode())
    os.replace(folder / "one", folder / "two")
    if (folder / "two").read_bytes() != b"one":
        return Check("names", "wrong", "a rename did not replace a file", _LOCAL)
    try:
        os.link(folder / "two", folder / "three")
    except OSError as error:
        text = f"a file cannot have two names ({error.strerror}): backups copy all segments"
        return Check("names", "note", text)
    return Check("names", "ok", "can be replaced and linked")


def check_syncs(folder: Path) -> Check:
    """What a durable commit costs: the median of syncs of one page."""
    times = []
    with open(folder / "sync", "w+b", buffering=0) as file:
        file.write(bytes(PAGE * _SYNCS))
        os.fsync(file.fileno())
        for number in range(_SYNCS):
            os.pwrite(file.fileno(), b"x" * PAGE, number * PAGE)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    median, worst = statistics.median(times), max(times)
    text = f"{median:.2f} ms for each, {worst:.2f} ms the slowest of {_SYNCS}"
    if median > _SLOW_SYNC_MS:
        hint = "commit many entries together, or open with sync='interval'"
        return Check("syncs", "note", text, hint)
    return Check("syncs", "ok", text)


def processes_with(store: Path) -> list[dict[str, Any]]:
    """Return the other processes of this user that have the data file open."""
    try:
        wanted = os.stat(store / DATA_FILE)
    except OSError:
        return []  # opening the store says what is wrong
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name == str(os.getpid()) or not _has_open(folder, wanted):
                continue
            name = (folder / "comm").read_bytes().rstrip(b"\n")
        except OSError:
            continue  # it has ended, or belongs to another user
        found.append({"process": int(folder.name), "name": json_bytes(name)})
    return sorted(found, key=lambda one: int(one["process"]))


def _has_open(folder: Path, wanted: os.stat_result) -> bool:
    for link in (folder / "fd").iterdir():
        try:
            one = link.stat()
        except OSError:
            continue
        if (one.st_dev, one.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False


_LIBRARIES = ("click", "rich", "librt", "xxhash", "pyarrow", "pyspark", "deltalake")


def facts() -> dict[str, str]:
    """Return what a bug report needs: versions of everything, and whether modules are compiled."""
    import lmdb
    import zstandard

    from streamkeep.format.node import listpack
    from streamkeep.format.rows.records import STORE_VERSION

    if listpack.__file__.endswith(".py"):
        why = "they were not compiled when the package was installed"
        if os.environ.get("STREAMKEEP_PURE") == "1":
            why = "STREAMKEEP_PURE=1 is set"
        modules = f"interpreted, several times slower: {why}"
    else:
        modules = "compiled"
    libraries = (f"{name} {found}" for name in _LIBRARIES if (found := _version(name)))
    return {
        "streamkeep": streamkeep.__version__,
        "store format": str(STORE_VERSION),
        "modules": modules,
        "Python": f"{platform.python_version()} ({platform.python_implementation()}, "
        f"{sys.maxsize.bit_length() + 1} bits)",
        "LMDB": f"{'.'.join(map(str, lmdb.version()))} (py-lmdb {_version('lmdb')})",
        "Zstandard": f"{'.'.join(map(str, zstandard.ZSTD_VERSION))} "
        f"(python-zstandard {_version('zstandard')})",
        "libraries": ", ".join(libraries),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "platform": platform.platform(),
        "C library": " ".join(platform.libc_ver()).strip() or "unknown",
    }


def _version(name: str) -> str:
    try:
        return installed(name)
    except PackageNotFoundError:
        return ""


# --- the command ----------------------------------------------------------------------------------


@command()
def doctor(place: Path = Path()) -> None:
    """Try what a store needs of this machine.

    STORE is a store, or a folder where one will be; by default the current folder. First comes the
    installation: compiled modules, versions, Java for Spark. Then locks, shared memory, reserved
    blocks, names and syncs are tried with files in a temporary folder beside STORE. Of a store, its
    format, its users, the processes that have it open and the last backup are shown. `wrong` means
    that a store there is not safe, or does not work; each `note` is something to know.

    Exit status: 0  nothing is wrong
                 6  there is no such folder
                 8  something is wrong: see the lines, and what is `next`

    Examples:
      streamkeep doctor
      streamkeep doctor orders.store --json

    Args:
        place ([STORE]):
    """
    if not place.exists() and not place.parent.is_dir():
        text = f"{place}: there is no such folder, and none above it"
        raise Failure(text, hint="correct the path", status=Exit.MISSING)
    wrong = []
    checks = chain(_installation(), examine(place), _store(place))
    for check in checks:
        if check.state == "wrong":
            wrong.append(check.name)
        output.item("check", f"{check.state:<5}  {check.name}: {check.text}", **check._asdict())
        if check.next and not common.as_json():
            output.line(f"       next: {check.next}")
    output.done(path=str(place), healthy=not wrong, wrong=wrong)
    if wrong:
        click.get_current_context().exit(Exit.ATTENTION)


def _installation() -> Iterator[Check]:
    found = facts()
    text = f"streamkeep {found['streamkeep']}, {found['modules']}, Python {found['Python']}"
    if found["modules"] == "compiled":
        yield Check("installation", "ok", text)
    else:
        hint = f"install gcc and Python's headers (python3-dev), then {install_hint(again=True)}"
        if os.environ.get("STREAMKEEP_PURE") == "1":
            hint = "unset STREAMKEEP_PURE; if it was set when the package was installed, " + hint
        yield Check("installation", "note", text, hint)
    names = ("LMDB", "Zstandard", "libraries", "system", "C library")
    yield Check("versions", "ok", "; ".join(f"{name} {found[name]}" for name in names))
    try:
        import pyspark  # noqa: F401

        from streamkeep.pipeline import ensure_java
    except (ImportError, StreamkeepError):
        text = "PySpark is not installed; only the commands of `streamkeep spark` need it"
        yield Check("Spark", "ok", text)
        return
    try:
        yield Check("Spark", "ok", f"Java at {ensure_java()}")
    except StreamkeepError as error:
        yield Check("Spark", "note", str(error), "install a Java of 17 or newer for Spark")


def _users(place: Path) -> Iterator[Check]:
    data, folder = (place / DATA_FILE).stat(), place.stat()
    owner = user_name(data.st_uid)
    text = f"files of {owner}, group {group_name(folder.st_gid)}, mode {data.st_mode & 0o777:o}"
    if not os.access(place / DATA_FILE, os.R_OK):
        hint = f"work as {owner}, or ask {owner} for the right to read"
        yield Check("users", "wrong", f"{text}: you may not read it", hint)
    elif not is_listed(place):
        hint = "work as a member of its group, or as its owner, to read while others write"
        yield Check("users", "note", f"{text}: you may only read, while no process writes", hint)
    else:
        yield Check("users", "ok", f"{text}: you may read and write")
    found = [f"{one['process']} ({one['name']})" for one in processes_with(place)]
    if os.geteuid():
        found.append("those of other users are not visible")
    yield Check("open by", "ok", ", ".join(found) or "no process")


def _store(place: Path) -> Iterator[Check]:
    """Yield what there is to know of a store, if one is there; its state last."""
    if (place / DATA_FILE).exists():
        yield from _users(place)
    else:
        rests = (place / DATA_FILE, place / CHECKPOINT_FILE) if place.is_dir() else (place,)
        if not any(map(os.path.lexists, rests)):
            return  # a store can be made here
    try:
        with open_store(place, readonly=True) as store, store.snapshot() as snapshot:
            backup = last_backup(snapshot)
            last = store.durability().last_commit
    except StreamkeepError as error:
        text, _, following = str(error).partition("; next: ")  # the error may know better
        yield Check("store", "wrong", text, following or f"streamkeep status {quote(str(place))}")
        return
    yield Check("store", "ok", "opens")
    if backup is None:
        hint = f"streamkeep backup {quote(str(place))} TARGET"
        yield Check("backup", "note", "the store knows of none", hint)
    else:
        age = f"{count_text(last - backup.commit_number, 'commit')} ago"
        text = f"the last one was made {time_text(backup.time_ms)}, {age}"
        yield Check("backup", "ok", text)
