"""Write the generated parts of the documentation; `--check` only says which are stale.

A generated part stands in its file between two comments:

    <!-- generated: NAME -->
    ...
    <!-- end -->

`PARTS` says which function renders it. All else in the files is written by hand.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from streamkeep.format.envelope import ENVELOPE
from streamkeep.format.extension import IDEMPOTENCE_SECTION
from streamkeep.format.group_records import CONSUMER_RECORD, GROUP_RECORD
from streamkeep.format.keys import TABLES
from streamkeep.format.nacks import NACK
from streamkeep.format.producers import MESSAGE_ROW, PRODUCER_ROW
from streamkeep.format.records import STREAM_RECORD
from streamkeep.format.versions import HISTORY
from streamkeep.recovery.catalogue import CATALOGUE
from streamkeep.tools.cli import main as root

HERE: Final = Path(__file__).parent
END: Final = "<!-- end -->"
WIDTH: Final = 90


class Part(NamedTuple):
    """One generated part: its file below docs/, its name there, and what renders it."""

    file: str
    name: str
    render: Callable[[], str]


# --- docs/cli.md --------------------------------------------------------------------------------


def contexts(
    command: click.Command, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """Yield a context of a command and of everything below it, in the order of the help text."""
    name = str(command.name)
    settings = {**command.context_settings, "terminal_width": WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            yield from contexts(command.commands[below], context)


def render_commands() -> str:
    """Return the help text of every command."""
    sections = []
    for context in contexts(root):
        help_text = context.get_help().rstrip()
        level = "##" if context.parent is None else "###"
        sections.append(f"{level} {context.command_path}\n\n```text\n{help_text}\n```")
    return "\n\n".join(sections)


# --- docs/format.md -----------------------------------------------------------------------------


def render_tables() -> str:
    """Return the table of sub-databases."""
    rows = [
        f"| {number} | `{table.name}` | {table.key} | {table.value} |"
        for number, table in enumerate(TABLES)
    ]
    return "\n".join(["| number | name | key | value |", "|---|---|---|---|", *rows])


def render_invariants() -> str:
    """Return every finding code with its meaning and advice."""
    rows = [
        f"| {code} | {kind.severity.name.lower()} | {kind.meaning} | {kind.advice} |"
        for code, kind in sorted(CATALOGUE.items())
    ]
    return "\n".join(["| code | severity | meaning | advice |", "|---|---|---|---|", *rows])


def render_versions() -> str:
    """Return what each version of the store format added."""
    return "\n".join(
        textwrap.fill(f"- **{version}**: {text}", width=98, subsequent_indent="  ")
        for version, text in HISTORY.items()
    )


PARTS: Final = (
    Part("cli.md", "commands", render_commands),
    Part("format.md", "tables", render_tables),
    Part("format.md", "envelope", ENVELOPE.table),
    Part("format.md", "record", STREAM_RECORD.table),
    Part("format.md", "group", GROUP_RECORD.table),
    Part("format.md", "consumer", CONSUMER_RECORD.table),
    Part("format.md", "nack", NACK.table),
    Part("format.md", "idempotence", IDEMPOTENCE_SECTION.table),
    Part("format.md", "producer", PRODUCER_ROW.table),
    Part("format.md", "message", MESSAGE_ROW.table),
    Part("format.md", "invariants", render_invariants),
    Part("format.md", "versions", render_versions),
)


# --- the files ----------------------------------------------------------------------------------


def with_part(text: str, part: Part) -> str:
    """Return the text of a file with one part rendered anew; raise ValueError without the marks."""
    mark = f"<!-- generated: {part.name} -->"
    before, found, rest = text.partition(mark)
    if not found or END not in rest:
        raise ValueError(f"docs/{part.file}: no {mark} with {END} behind it")
    after = rest[rest.index(END) :]
    return f"{before}{mark}\n\n{part.render()}\n\n{after}"


def main(args: list[str]) -> int:
    """Write or check all parts; return the exit status."""
    if args not in ([], ["--check"]):
        print("usage: generate.py [--check]", file=sys.stderr)
        return 2
    stale = 0
    for file in dict.fromkeys(part.file for part in PARTS):
        path = HERE / file
        text = old = path.read_text(encoding="utf-8")
        for part in PARTS:
            if part.file == file:
                text = with_part(text, part)
        if text == old:
            continue
        if args:
            print(f"docs/{file} is stale; run `make docs`", file=sys.stderr)
            stale += 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{file}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
