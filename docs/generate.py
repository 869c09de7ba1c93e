"""Write the generated parts of the documentation; `--check` only says which are stale.

`--check` also reports files and modules that the pages name and that do not exist.

A generated part is between two comments of its file:

    <!-- generated: NAME -->
    ...
    <!-- end -->

`PARTS` says which function renders it. Everything else in the files is written by hand. The
types of the asyncio twin, `engine/api/async_commands.pyi`, are generated as a whole.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click
import stubs

from streamkeep.format.core.keys import TABLES
from streamkeep.format.core.versions import HISTORY
from streamkeep.format.log.checkpoint import SLOT
from streamkeep.format.log.journal import FILE_HEADER, RECORD_HEADER
from streamkeep.format.node.envelope import ENVELOPE
from streamkeep.format.rows.batches import BATCH_ROW
from streamkeep.format.rows.extension import IDEMPOTENCE_SECTION
from streamkeep.format.rows.group_records import CONSUMER_RECORD, GROUP_RECORD
from streamkeep.format.rows.nacks import NACK
from streamkeep.format.rows.producers import MESSAGE_ROW, PRODUCER_ROW
from streamkeep.format.rows.records import STREAM_RECORD
from streamkeep.format.rows.restoring import RESTORING_SECTION
from streamkeep.format.rows.retention import RETENTION_SECTION
from streamkeep.format.segment.index import INDEX_HEADER, INDEX_ROW, TRAILER
from streamkeep.format.segment.manifest import ERASURE, SEGMENT_RECORD
from streamkeep.recovery.fsck.catalogue import CATALOGUE
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


# --- docs/reference -----------------------------------------------------------------------------


def render_tables() -> str:
    """Return the table of sub-databases."""
    rows = [
        f"| {number} | `{table.name}` | {table.key} | {table.value} |"
        for number, table in TABLES.items()
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


# --- docs/decisions -----------------------------------------------------------------------------


def render_decisions() -> str:
    """Return a list of the decisions, by their first lines."""
    pages = sorted((HERE / "decisions").glob("0*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].strip("# ") for page in pages]
    return "\n".join(f"- [{title}]({page.name})" for title, page in zip(titles, pages, strict=True))


PARTS: Final = (
    Part("decisions/README.md", "decisions", render_decisions),
    Part("cli.md", "commands", render_commands),
    Part("reference/format.md", "tables", render_tables),
    Part("reference/format.md", "batch", BATCH_ROW.table),
    Part("reference/format.md", "envelope", ENVELOPE.table),
    Part("reference/format.md", "record", STREAM_RECORD.table),
    Part("reference/format.md", "group", GROUP_RECORD.table),
    Part("reference/format.md", "consumer", CONSUMER_RECORD.table),
    Part("reference/format.md", "nack", NACK.table),
    Part("reference/format.md", "retention", RETENTION_SECTION.table),
    Part("reference/format.md", "idempotence", IDEMPOTENCE_SECTION.table),
    Part("reference/format.md", "producer", PRODUCER_ROW.table),
    Part("reference/format.md", "message", MESSAGE_ROW.table),
    Part("reference/format.md", "journal file", FILE_HEADER.table),
    Part("reference/format.md", "journal record", RECORD_HEADER.table),
    Part("reference/format.md", "checkpoint slot", SLOT.table),
    Part("reference/format.md", "restoring", RESTORING_SECTION.table),
    Part("reference/format.md", "segment trailer", TRAILER.table),
    Part("reference/format.md", "segment index", INDEX_HEADER.table),
    Part("reference/format.md", "segment row", INDEX_ROW.table),
    Part("reference/format.md", "segment record", SEGMENT_RECORD.table),
    Part("reference/format.md", "erasure", ERASURE.table),
    Part("reference/findings.md", "findings", render_invariants),
    Part("reference/format.md", "versions", render_versions),
)


# --- the files ----------------------------------------------------------------------------------


def with_part(text: str, part: Part) -> str:
    """Return the text of a file with one part rendered again, or raise ValueError."""
    mark = f"<!-- generated: {part.name} -->"
    before, found, rest = text.partition(mark)
    if not found or END not in rest:
        raise ValueError(f"docs/{part.file}: no {mark} with {END} after it")
    after = rest[rest.index(END) :]
    return f"{before}{mark}\n\n{part.render()}\n\n{after}"


FOLDERS: Final = (
    "benchmarks|docs|engine|examples|format|pipeline|recovery|server|src|tests|tools|transfer"
)


def missing_names(root: Path) -> Iterator[str]:
    """Yield each file, folder and module that a page names in back quotes and that is missing."""
    for page in [*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))]:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{page.relative_to(root)}:{number}"
            for name in re.findall(rf"`((?:{FOLDERS})/[^`\s]*)`", line):
                if not any(root.glob(name.rstrip("/"))):
                    yield f"{where}: `{name}` does not exist"
            for name in re.findall(r"`(streamkeep(?:\.\w+)+)\b", line):
                if not is_name(root / "src", name.split(".")):
                    yield f"{where}: `{name}` does not exist"


def is_name(folder: Path, parts: list[str]) -> bool:
    """Say whether a dotted name is a package, a module, or a word of its last module."""
    while parts and (folder / parts[0]).is_dir():
        folder, parts = folder / parts[0], parts[1:]
    module = folder / "__init__.py"
    if parts and (folder / f"{parts[0]}.py").is_file():
        module, parts = folder / f"{parts[0]}.py", parts[1:]
    if not parts:
        return True
    return module.is_file() and re.search(rf"\b{parts[0]}\b", module.read_text()) is not None


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
    for stub in stubs.STUBS:
        path, text = stubs.ROOT / stub.file, stubs.render(stub)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if args:
            print(f"{stub.file} is stale; run `make docs`", file=sys.stderr)
            stale += 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {stub.file}")
    if args:
        for problem in missing_names(HERE.parent):
            print(f"{problem}; correct the page", file=sys.stderr)
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
