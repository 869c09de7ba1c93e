"""doctor: does this machine give a store what it needs, and is the installation complete?"""

from __future__ import annotations

from pathlib import Path

import click

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.recovery.backups.backup import last_backup
from streamkeep.recovery.doctor import Check, examine
from streamkeep.tools.base import output
from streamkeep.tools.base.arguments import path_of
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.statuses import Exit, Failure
from streamkeep.tools.base.version import facts


@command()
@click.argument(
    "place", metavar="[STORE]", default=".", type=click.Path(), callback=path_of, required=False
)
def doctor(place: Path) -> None:
    """Try what a store needs of this machine.

    STORE is a store, or a folder where one will be; by default the current folder. Locks, shared
    memory, reserved blocks, names and syncs are tried with files in a temporary folder beside it.
    Then the installation is looked at: compiled modules, Java for Spark. `wrong` means that a store
    there is not safe, or does not work; each `note` is something to know.

    \b
    Exit status: 0  nothing is wrong
                 6  there is no such folder
                 8  something is wrong: see the lines, and what is `next`

    \b
    Examples:
      streamkeep doctor
      streamkeep doctor orders.store --json
    """
    if not place.exists() and not place.parent.is_dir():
        raise Failure(f"{place}: there is no such folder, and none above it", status=Exit.MISSING)
    checks: list[Check] = []

    def tell(check: Check) -> None:
        checks.append(check)
        if output.as_json():
            output.json_line("check", **check._asdict())
            return
        output.line(f"{check.state:<5}  {check.name}: {check.text}")
        if check.next:
            output.line(f"       next: {check.next}")

    tell(_modules())
    tell(_java())
    for check in examine(place):
        tell(check)
    if (place / DATA_FILE).exists():
        tell(_store(place))
    wrong = [check.name for check in checks if check.state == "wrong"]
    if output.as_json():
        output.summary(path=str(place), healthy=not wrong, wrong=wrong)
    if wrong:
        click.get_current_context().exit(Exit.ATTENTION)


def _modules() -> Check:
    found = facts()
    text = f"streamkeep {found['streamkeep']}, {found['modules']}, Python {found['Python']}"
    if found["modules"] == "compiled":
        return Check("installation", "ok", text)
    hint = "install a C compiler and Python's headers, then install again without STREAMKEEP_PURE"
    return Check("installation", "note", text, hint)


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


def _store(place: Path) -> Check:
    try:
        with open_store(place, readonly=True) as store, store.snapshot() as snapshot:
            backup = last_backup(snapshot)
            last = store.durability().last_commit
    except (StreamkeepError, Failure) as error:
        return Check("store", "wrong", str(error), f"streamkeep status {place}")
    if backup is None:
        return Check("store", "note", "opens; it knows of no backup", "see `streamkeep backup`")
    age = f"{output.count_text(last - backup.commit_number, 'commit')} ago"
    return Check("store", "ok", f"opens; last backup {output.time_text(backup.time_ms)}, {age}")
