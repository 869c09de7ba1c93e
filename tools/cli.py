"""The command line: its root, its list of commands, and `--version`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

import click

from streamkeep import supported
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import COMPLETE_VARIABLE
from streamkeep.tools.base.command import CommandGroup, of_system, tell, tell_usage, wants_json
from streamkeep.tools.base.common import MEANINGS, Exit, Failure
from streamkeep.tools.base.terminal import guard

Families: TypeAlias = tuple[tuple[str, dict[str, str]], ...]

# Every command and its module below `tools/commands/`, under the heading of its family in the help
# text. A module is imported when its command runs: all of them together take half a second.
COMMANDS: Final[Families] = (
    ("Run a queue of jobs", {"work": "work_cmd", "queue": "queue_cmds"}),
    (
        "Write, read and remove entries",
        dict.fromkeys(("add", "range", "tail", "trim", "erase"), "entry_cmds"),
    ),
    ("Speak Redis", {"exec": "exec_cmd", "serve": "serve_cmd", "follow": "follow_cmd"}),
    (
        "Look at a store and its streams",
        {
            "status": "status_cmd",
            **dict.fromkeys(("streams", "info", "pending", "stat"), "stream_cmds"),
            "changes": "changes_cmd",
            **dict.fromkeys(("top", "metrics"), "figures_cmds"),
            "ui": "serve_cmd",
        },
    ),
    ("Keep what was trimmed", {"retention": "retention_cmd", "archive": "archive_cmd"}),
    ("Move whole streams", {"dump": "dump_cmd", "load": "load_cmd", "diff": "diff_cmd"}),
    (
        "Create, check, repair and back up a store",
        {
            **dict.fromkeys(
                ("create", "fsck", "repair", "backup", "restore", "compact"), "store_cmds"
            ),
            **dict.fromkeys(("ship", "standby", "promote"), "ship_cmd"),
        },
    ),
    ("Check the machine", {"doctor": "doctor_cmd"}),
    ("Work on Spark", {"spark": "spark_cmd"}),
    ("Set up your shell", {"completion": "completion_cmd"}),
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
        # Only on a terminal, where no program reads it.
        text = supported.interpreted()
        if text and sys.stderr.isatty():
            output.note(f"warning: {text}")
        if COMPLETE_VARIABLE not in os.environ:  # else click writes bytes, of printable names
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
        except OSError as error:  # of a help text: commands handle their own
            tell(name, of_system(error), json=wants_json(words))
            status = Exit.ABORTED
        sys.exit(int(status or 0))

    def format_common(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = [option.get_help_record(ctx) for option in common.OPTIONS]
        with formatter.section("Common options, before the name of any command or after it"):
            formatter.write_dl([record for record in records if record])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit status"):
            formatter.write_dl([(str(int(one)), text) for one, text in MEANINGS.items()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help text."""
        return [name for _, family in COMMANDS for name in family]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command, and return the command; None for another name."""
        for _, family in COMMANDS:
            if cmd_name in family:
                module = import_module(f"streamkeep.tools.commands.{family[cmd_name]}")
                found = (one for one in vars(module).values() if isinstance(one, click.Command))
                return next(one for one in found if one.name == cmd_name)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for heading, family in COMMANDS:
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (f"{name:<{width}}", command.get_short_help_str(limit=70))
                        for name in family
                        if (command := self.get_command(ctx, name))
                    ]
                )


def print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print what a bug report needs."""
    if not value or ctx.resilient_parsing:
        return
    from streamkeep.tools.commands.doctor_cmd import facts

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
    """Durable queues of jobs, and Redis Streams, in a directory.

    `queue` and `work` are for queues of jobs; most others are for streams. STORE is the directory;
    `queue put`, `add`, `load` and `exec STORE XADD` create it. KEY is the name of one of
    its streams; it may be empty (''). Results go to standard output, everything else to standard
    error. `streamkeep exec STORE COMMAND` runs every command of Redis Streams.

    Example:
      streamkeep queue put jobs.store '["ann"]' --task send
      streamkeep queue status jobs.store
      streamkeep add orders.store orders sku 7 count 2
      streamkeep range orders.store orders
      streamkeep streams orders.store
    """
