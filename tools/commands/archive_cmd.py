"""archive ...: what a stream has trimmed, in compressed files that stay readable."""

from __future__ import annotations

from streamkeep.tools.base.command import group_command
from streamkeep.tools.commands.archive_files_cmds import adopt, export, remove, verify
from streamkeep.tools.commands.archive_list_cmd import list_
from streamkeep.tools.commands.archive_restore_cmd import restore
from streamkeep.tools.commands.archive_run_cmd import run


@group_command()
def archive() -> None:
    """Manage the archive: trimmed entries in compressed files.

    Segments are files below STORE/archive, each with a range of IDs of one stream. Reading with
    --history shows their entries together with live ones.

    \b
    Example:
      streamkeep archive list orders.store
      streamkeep archive verify orders.store
    """


for _command in (run, list_, verify, restore, adopt, export, remove):
    archive.add_command(_command)
