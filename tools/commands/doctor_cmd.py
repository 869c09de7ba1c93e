"""doctor: does this machine give a store what it needs, and is the installation complete?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.store.opening import is_listed
from streamkeep.engine.system.modes import group_name
from streamkeep.engine.system.owners import user_name
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.humanize import count_text, time_text
from streamkeep.recovery.backups.backup import last_backup
from streamkeep.supported import install_hint
from streamkeep.tools.base import common, output
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.machine import Check, examine, facts, processes_with
from streamkeep.tools.base.opening import open_store


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
    checks: list[Check] = []

    def tell(check: Check) -> None:
        checks.append(check)
        if common.as_json():
            output.json_line("check", **check._asdict())
            return
        output.line(f"{check.state:<5}  {check.name}: {check.text}")
        if check.next:
            output.line(f"       next: {check.next}")

    tell(_modules())
    tell(_versions())
    tell(_java())
    for check in examine(place):
        tell(check)
    if (place / DATA_FILE).exists():
        for check in _store(place):
            tell(check)
    wrong = [check.name for check in checks if check.state == "wrong"]
    output.done(path=str(place), healthy=not wrong, wrong=wrong)
    if wrong:
        click.get_current_context().exit(Exit.ATTENTION)


def _modules() -> Check:
    found = facts()
    text = f"streamkeep {found['streamkeep']}, {found['modules']}, Python {found['Python']}"
    if found["modules"] == "compiled":
        return Check("installation", "ok", text)
    hint = f"install gcc and Python's headers (python3-dev), then {install_hint(again=True)}"
    if os.environ.get("STREAMKEEP_PURE") == "1":
        hint = "unset STREAMKEEP_PURE; if it was set when the package was installed, " + hint
    return Check("installation", "note", text, hint)


def _versions() -> Check:
    found = facts()
    names = ("LMDB", "Zstandard", "libraries", "system", "C library")
    return Check("versions", "ok", "; ".join(f"{name} {found[name]}" for name in names))


def _java() -> Check:
    try:
        import pyspark  # noqa: F401

        from streamkeep.pipeline import ensure_java
    except (ImportError, StreamkeepError):
        text = "PySpark is not installed; only the commands of `streamkeep spark` need it"
        return Check("Spark", "ok", text)
    try:
        return Check("Spark", "ok", f"Java at {ensure_java()}")
    except StreamkeepError as error:
        return Check("Spark", "note", str(error), "install a Java of 17 or newer for Spark")


def _store(place: Path) -> Iterator[Check]:
    """Yield what there is to know of a store; nothing after it cannot be opened."""
    yield _users(place)
    yield _open_by(place)
    try:
        with open_store(place, readonly=True) as store, store.snapshot() as snapshot:
            backup = last_backup(snapshot)
            last = store.durability().last_commit
    except StreamkeepError as error:
        text, _, following = str(error).partition("; next: ")  # the error may know better
        yield Check("store", "wrong", text, following or f"streamkeep status {place}")
        return
    yield Check("store", "ok", "opens")
    if backup is None:
        yield Check(
            "backup", "note", "the store knows of none", f"streamkeep backup {place} TARGET"
        )
        return
    age = f"{count_text(last - backup.commit_number, 'commit')} ago"
    yield Check("backup", "ok", f"the last one was made {time_text(backup.time_ms)}, {age}")


def _users(place: Path) -> Check:
    data, folder = (place / DATA_FILE).stat(), place.stat()
    owner = user_name(data.st_uid)
    text = f"files of {owner}, group {group_name(folder.st_gid)}, mode {data.st_mode & 0o777:o}"
    if not os.access(place / DATA_FILE, os.R_OK):
        hint = f"work as {owner}, or ask {owner} for the right to read"
        return Check("users", "wrong", f"{text}: you may not read it", hint)
    if not is_listed(place):
        hint = "work as a member of its group, or as its owner, to read while others write"
        return Check("users", "note", f"{text}: you may only read, while no process writes", hint)
    return Check("users", "ok", f"{text}: you may read and write")


def _open_by(place: Path) -> Check:
    found = [f"{one['process']} ({one['name']})" for one in processes_with(place)]
    if os.geteuid():
        found.append("those of other users are not visible")
    return Check("open by", "ok", ", ".join(found) or "no process")
