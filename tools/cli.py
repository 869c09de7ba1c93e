"""The command line: its root, its list of commands, and `--version`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from streamkeep.tools.base import common, output
from streamkeep.tools.base.command import (
    CommandGroup,
    of_system,
    statuses_text,
    tell,
    tell_usage,
    wants_json,
)
from streamkeep.tools.base.completion import COMPLETE_VARIABLE
from streamkeep.tools.base.statuses import Exit, Failure
from streamkeep.tools.base.terminal import guard
from streamkeep.tools.commands.archive_cmd import archive
from streamkeep.tools.commands.claim_cmds import autoclaim, claim
from streamkeep.tools.commands.completion_cmd import completion
from streamkeep.tools.commands.copy_cmds import backup, compact
from streamkeep.tools.commands.diff_cmd import diff
from streamkeep.tools.commands.dump_cmd import dump
from streamkeep.tools.commands.entry_cmds import add, delete, trim
from streamkeep.tools.commands.erase_cmd import erase
from streamkeep.tools.commands.exec_cmd import exec_
from streamkeep.tools.commands.fsck_cmd import fsck
from streamkeep.tools.commands.group_cmds import consumer, group
from streamkeep.tools.commands.info_cmds import info
from streamkeep.tools.commands.load_cmd import load
from streamkeep.tools.commands.pending_cmds import ack, nack, pending
from streamkeep.tools.commands.range_cmds import len_, range_, tail
from streamkeep.tools.commands.read_cmd import read
from streamkeep.tools.commands.repair_cmd import repair
from streamkeep.tools.commands.retention_cmd import retention
from streamkeep.tools.commands.spark_cmd import spark
from streamkeep.tools.commands.stat_cmd import stat
from streamkeep.tools.commands.status_cmd import status
from streamkeep.tools.commands.stream_cmds import config, remember, remove, rename, set_id, streams

# Every command, under the heading of its family in the help text.
COMMANDS: Final[tuple[tuple[str, tuple[click.Command, ...]], ...]] = (
    ("Write entries", (add, load, delete, trim, erase)),
    ("Read entries", (len_, range_, read, tail)),
    ("Share entries between consumers", (group, consumer, pending, ack, nack, claim, autoclaim)),
    ("Look at a store and its streams", (status, streams, stat, info)),
    ("Change streams", (rename, remove, config, retention, set_id, remember)),
    ("Keep what was trimmed", (archive,)),
    ("Move whole streams", (dump, diff)),
    ("Check, repair and back up a store", (fsck, repair, backup, compact)),
    ("Speak Redis", (exec_,)),
    ("Work on Spark", (spark,)),
    ("Set up your shell", (completion,)),
)


class Root(CommandGroup):
    """The root of all commands; its help lists them by family."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; text that a terminal cannot show is escaped."""
        output.open_closed()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        if (
            COMPLETE_VARIABLE not in os.environ
        ):  # click writes bytes then, of names that are printable
            guard()
        name = prog_name or "streamkeep"
        words = list(sys.argv[1:] if args is None else args)
        status: Any
        try:
            status = super().main(words, name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            tell_usage(error, json=wants_json(words))
            status = error.exit_code
        except click.Abort:
            if wants_json(words):
                tell(name, Failure("interrupted", code="Abort"), json=True)
            else:
                output.note("Aborted!")
            status = Exit.ABORTED
        except BrokenPipeError:
            output.give_up()
            status = Exit.OK
        except OSError as error:  # of a help text: commands handle their own
            tell(name, of_system(error), json=wants_json(words))
            status = Exit.ABORTED
        sys.exit(int(status or 0))

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the arguments; a help text whose reader goes early is no error."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            output.give_up()
            raise click.exceptions.Exit(Exit.OK) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, or print its help text."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            output.give_up()
            raise click.exceptions.Exit(Exit.OK) from None

    def format_common(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options."""
        records = [option.get_help_record(ctx) for option in common.OPTIONS]
        with formatter.section("Common options, before the name of any command or after it"):
            formatter.write_dl([record for record in records if record])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what exit statuses mean."""
        with formatter.section("Exit status"):
            formatter.write_dl(statuses_text())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help text."""
        return [str(command.name) for _, family in COMMANDS for command in family]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by family."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for heading, family in COMMANDS:
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (f"{command.name:<{width}}", command.get_short_help_str(limit=70))
                        for command in family
                    ]
                )


def print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print what a bug report needs."""
    if not value or ctx.resilient_parsing:
        return
    from streamkeep.tools.base.version import facts

    found = facts()
    if common.given(ctx).json:
        members = {name.lower().replace(" ", "_"): text for name, text in found.items()}
        output.json_line("version", **members)
    else:
        width = max(map(len, found))
        for name, text in found.items():
            output.line(f"{name:<{width}}  {text}")
    ctx.exit()


@click.group(
    "streamkeep",
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=print_version,
    help="Print what a bug report needs: all versions, compiled or not, the system.",
)
def main() -> None:
    """Redis Streams, durable in a directory.

    STORE is the directory; `add`, `load` and `group create --mkstream` create it. KEY is the name
    of one of its streams; it may be empty (''). Results go to standard output, everything else to
    standard error.

    \b
    Example:
      streamkeep add orders.store orders sku 7 count 2
      streamkeep range orders.store orders
      streamkeep streams orders.store
    """


for _, _family in COMMANDS:
    for _command in _family:
        main.add_command(_command)
