"""create: an empty store, with the mode and the group of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.statuses import Exit, Failure


class Mode(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A mode as `chmod` takes it: octal digits."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if isinstance(value, int):
            return value
        try:
            return int(value, 8)
        except ValueError:
            self.fail(f"{value!r} is not a mode in octal digits, such as 660", param, ctx)


@command()
@store_argument
@click.option("--mode", type=Mode(), help="Mode of all files, such as 660 or 600.")
@click.option("--group", help="Group of all files, by name or number; the mode is then 660.")
def create(store_path: Path, mode: int | None, group: str | None) -> None:
    """Create the empty store STORE, with a mode and a group.

    Commands that write create a missing store, too: then the umask decides which users may use it.
    Each file that is made later gets the same mode and group, from each user. In a group with the
    mode 660, all members can read and write. Readers need the right to write, too, as long as
    others write: LMDB notes them in its lock file.

    \b
    Examples:
      streamkeep create shared.store --mode 660
      streamkeep create private.store --mode 600
    """
    import streamkeep

    if (store_path / DATA_FILE).exists():
        hint = f"chmod -R and chgrp -R change who may use it: see the files in {store_path}"
        raise Failure(f"{store_path}: there is a store already", hint=hint, status=Exit.UNREADABLE)
    with streamkeep.open(store_path, mode=mode, group=group) as store:
        identity = store.uuid
    status = (store_path / DATA_FILE).stat()
    if common.as_json():
        shown = f"{status.st_mode & 0o777:o}"
        output.summary(path=str(store_path), uuid=identity, mode=shown, group=status.st_gid)
        return
    output.line(f"{store_path}: created; its files have the mode {status.st_mode & 0o777:o}")
