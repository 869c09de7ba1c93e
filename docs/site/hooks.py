"""What `make site` adds to mkdocs.

- A `folder/*` of the navigation in mkdocs.yml becomes the pages of that folder.
- The help texts of the commands become Markdown, for mkdocs-click, which shows them.
- The page of the findings gets their table.
- Guides come before internals in the results of a search.
- llms.txt lies beside the pages, with their addresses.
- Lists are written as code hosts read them. Python-Markdown needs an empty line before them, and
  four columns for each level.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from streamkeep.recovery.fsck.findings import CATALOGUE, REBUILD, SALVAGE
from streamkeep.tools.base import common
from streamkeep.tools.cli import main

RANKS: Final = {"operate": 1.5, "concepts": 1.5, "reference": 0.8, "cli": 0.8} | dict.fromkeys(
    ("internals", "decisions"), 0.3
)  # others have 2
ITEM: Final = re.compile(r"( *)(?:[-*]|\d+\.) ")


def on_config(config: Any) -> Any:
    """Expand the navigation, and make Markdown of the help texts; mkdocs calls this."""
    for option in common.OPTIONS:
        option.hidden = True  # cli/README.md explains them once
    make_markdown(main, click.Context(main))
    nav = config["nav"]
    config["nav"] = expanded(nav, Path(config["docs_dir"]), set(named(nav)))
    return config


def make_markdown(command: click.Command, context: click.Context) -> None:
    """Change the help texts of a command, and of all below it, to Markdown."""
    command.help = as_markdown(command.help or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            make_markdown(below, context)


def as_markdown(text: str) -> str:
    """Return a help text with its blocks as code, and marks of Markdown escaped elsewhere."""
    parts = []
    for block in inspect.cleandoc(text).split("\n\n"):
        if block.startswith("\b\n"):  # click's mark of what keeps its lines
            heading, _, rest = block[2:].partition(":")
            first, _, others = rest.partition("\n")
            lines = [first.strip(), inspect.cleandoc(others)]
            parts.append(f"**{heading}**\n\n```text\n" + "\n".join(filter(None, lines)) + "\n```")
        else:
            words = re.split(r"(`[^`]*`)", block)
            words[::2] = [re.sub(r"([*<>\[\]|])", r"\\\1", one) for one in words[::2]]
            parts.append("".join(words))
    return "\n\n".join(parts)


def named(items: list[Any]) -> Iterator[str]:
    """Yield every page and every `folder/*` of a navigation."""
    for item in items:
        for below in item.values() if isinstance(item, dict) else [item]:
            yield from named(below) if isinstance(below, list) else [below]


def expanded(items: list[Any], docs: Path, elsewhere: set[str]) -> list[Any]:
    """Return a navigation with the pages of each `folder/*` that it does not name elsewhere."""
    result: list[Any] = []
    for item in items:
        if isinstance(item, dict):
            [(title, below)] = item.items()
            is_list = isinstance(below, list)
            result.append({title: expanded(below, docs, elsewhere) if is_list else below})
        elif item.endswith("/*"):
            pages = (page.relative_to(docs).as_posix() for page in docs.glob(f"{item}.md"))
            result += sorted(page for page in pages if page not in elsewhere)
        else:
            result.append(item)
    return result


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Rank a page for the search, fill in findings, and rewrite lists; mkdocs calls this."""
    folder = page.file.src_uri.partition("/")[0]
    page.meta.setdefault("search", {"boost": RANKS.get(folder, 2)})
    return with_lists(text.replace("<!-- findings -->", findings()))


def findings() -> str:
    """Return a table of every code of fsck, with its meaning and advice."""
    short = {REBUILD: "repair: no loss", SALVAGE: "repair: with loss"}
    rows = [
        f"| {code} | {kind.severity.name.lower()} | {kind.meaning} "
        f"| {short.get(kind.advice, kind.advice)} |"
        for code, kind in sorted(CATALOGUE.items())
    ]
    return "\n".join(["| code | severity | meaning | advice |", "|---|---|---|---|", *rows])


def with_lists(text: str) -> str:
    """Return a text with its lists as Python-Markdown needs them."""
    result: list[str] = []
    in_code = False
    margins: list[int] = []  # where the text of the items begins that are open
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        fence = line.lstrip().startswith("```")
        item = None if in_code or fence else ITEM.match(line)
        was_in_list = bool(margins)
        if not in_code and line.strip():
            while margins and indent < margins[-1]:
                margins.pop()
        if item and not was_in_list and result and result[-1].strip():
            result.append("")
        is_below = margins and line.strip()
        result.append("    " * len(margins) + line[margins[-1] :] if is_below else line)
        if item:
            margins.append(item.end())
        in_code ^= fence
    return "\n".join(result) + "\n"


def on_post_build(config: Any) -> None:
    """Write llms.txt with the addresses of the site; mkdocs calls this."""
    text = Path(config["docs_dir"]).parent.joinpath("llms.txt").read_text(encoding="utf-8")
    Path(config["site_dir"], "llms.txt").write_text(addressed(text), encoding="utf-8")


def addressed(text: str) -> str:
    """Return a text with the addresses of the site in place of the pages' paths."""
    return re.sub(r"\]\(docs/([^)]*)\.md\)", r"](\1.html)", text)
