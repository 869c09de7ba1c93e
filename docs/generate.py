"""Write the generated parts of the documentation; `--check` only says which are stale.

`--check` also reports files and modules that the pages name and that do not exist.

A generated part is between two comments of its file:

    <!-- generated: NAME -->
    ...
    <!-- end -->

`PARTS` says which function renders it. Everything else in the files is written by hand. Commands
that install Streamkeep follow `installs.py`.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import installs

from streamkeep.format.copies.piece import PIECE
from streamkeep.format.core.keys import TABLES
from streamkeep.format.journal.checkpoint import SLOT
from streamkeep.format.journal.journal import FILE_HEADER, RECORD_HEADER
from streamkeep.format.journal.position import POSITION
from streamkeep.format.node.envelope import ENVELOPE
from streamkeep.format.rows.extension import IDEMPOTENCE_SECTION
from streamkeep.format.rows.group_records import CONSUMER_RECORD, GROUP_RECORD
from streamkeep.format.rows.meta_rows import BATCH_ROW
from streamkeep.format.rows.nacks import NACK
from streamkeep.format.rows.producers import MESSAGE_ROW, PRODUCER_ROW
from streamkeep.format.rows.records import STREAM_RECORD
from streamkeep.format.rows.retention import RETENTION_SECTION
from streamkeep.format.segment.index import INDEX_HEADER, INDEX_ROW, TRAILER
from streamkeep.format.segment.manifest import SEGMENT_RECORD
from streamkeep.tools.base.common import MEANINGS

HERE: Final = Path(__file__).parent
END: Final = "<!-- end -->"


class Part(NamedTuple):
    """One generated part: its file below docs/, its name there, and what renders it."""

    file: str
    name: str
    render: Callable[[], str]


# --- docs/cli -----------------------------------------------------------------------------------


def render_statuses() -> str:
    """Return a table of the exit statuses."""
    rows = [f"| {int(status)} | {meaning} |" for status, meaning in MEANINGS.items()]
    return "\n".join(["| status | meaning |", "|---|---|", *rows])


# --- docs/reference -----------------------------------------------------------------------------


def render_tables() -> str:
    """Return the table of sub-databases."""
    rows = [
        f"| {number} | `{table.name}` | {table.key} | {table.value} |"
        for number, table in TABLES.items()
    ]
    return "\n".join(["| number | name | key | value |", "|---|---|---|---|", *rows])


# --- llms.txt -----------------------------------------------------------------------------------

SECTIONS: Final = {  # of llms.txt, by folder
    "Start": ".",
    "Guides": "guide",
    "Integrations": "integrations",
    "Operation": "operate",
    "Concepts": "concepts",
    "Reference": "reference",
    "Internals": "internals",
}


def render_pages() -> str:
    """Return all pages with their titles, except for those of commands and decisions."""
    parts = []
    for heading, folder in SECTIONS.items():
        pages = [page for page in sorted((HERE / folder).glob("*.md")) if page.stem != "README"]
        if pages:
            lines = [f"- [{title_of(page)}](docs/{page.relative_to(HERE)})" for page in pages]
            parts.append("\n".join([f"## {heading}", "", *lines]))
    return "\n\n".join(parts)


def title_of(page: Path) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, page
    return found[1].replace("`", "")


# --- examples -----------------------------------------------------------------------------------


def program(path: str) -> Callable[[], str]:
    """Return what renders an example: `py` in place of `python`, as tests run the file itself."""

    def render() -> str:
        text = (HERE.parent / "examples" / path).read_text(encoding="utf-8").strip()
        return f"```py\n{text}\n```"

    return render


PARTS: Final = (
    Part("../llms.txt", "pages", render_pages),
    Part("examples.md", "crawler", program("programs/crawler.py")),
    Part("cli/README.md", "statuses", render_statuses),
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
    Part("reference/format.md", "piece", PIECE.table),
    Part("reference/format.md", "journal record", RECORD_HEADER.table),
    Part("reference/format.md", "log position", POSITION.table),
    Part("reference/format.md", "checkpoint slot", SLOT.table),
    Part("reference/format.md", "segment trailer", TRAILER.table),
    Part("reference/format.md", "segment index", INDEX_HEADER.table),
    Part("reference/format.md", "segment row", INDEX_ROW.table),
    Part("reference/format.md", "segment record", SEGMENT_RECORD.table),
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
    "arrow|benchmarks|docs|engine|examples|format|integrations|jobs|metrics|pipeline|recovery"
    "|scripts|server|src|tests|tools|transfer"
)

WITH_ROOMS: Final = (
    "engine",
    "format",
    "pipeline",
    "recovery",
    "replication",
    "server",
    "tools",
    "transfer",
)


def missing_names(root: Path) -> Iterator[str]:
    """Yield each file, folder and module that a page names in back quotes and that is missing."""
    for page in [*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))]:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{page.relative_to(root)}:{number}"
            for name in re.findall(rf"`((?:{FOLDERS})/[^`\s]*)`", line):
                places = (root, root / "src" / "streamkeep")  # pages leave the latter out
                if not any(one for place in places for one in place.glob(name.rstrip("/"))):
                    yield f"{where}: `{name}` does not exist"
            for name in re.findall(r"`(streamkeep(?:\.\w+)+)\b", line):
                if not is_name(root / "src", name.split(".")):
                    yield f"{where}: `{name}` does not exist"
    for page in (
        page
        for folder in WITH_ROOMS
        for page in (root / "src" / "streamkeep").glob(f"{folder}/__init__.py")
    ):
        text = ast.get_docstring(ast.parse(page.read_text(encoding="utf-8"))) or ""
        for room in sorted(path.parent.name for path in page.parent.glob("*/__init__.py")):
            if not re.search(rf"\b{room}\b", text):
                yield f"{page.relative_to(root)}: the room `{room}` is not named"


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
    with_parts = [(HERE / part.file).resolve() for part in PARTS]
    for path in dict.fromkeys([*with_parts, *installs.pages(HERE.parent)]):
        shown = os.path.normpath(f"docs/{os.path.relpath(path, HERE)}")
        text = old = path.read_text(encoding="utf-8")
        for part, file in zip(PARTS, with_parts, strict=True):
            if file == path:
                text = with_part(text, part)
        text = installs.with_installs(text)
        if text == old:
            continue
        if args:
            print(f"{shown} is stale; run `make docs`", file=sys.stderr)
            stale += 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {shown}")
    if args:
        for problem in missing_names(HERE.parent):
            print(f"{problem}; correct the page", file=sys.stderr)
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
