"""The page and the server name no command that does not run."""

from __future__ import annotations

import re
from pathlib import Path

import streamkeep
from cli_runner import run
from streamkeep.server import ui

# Such as `streamkeep retention set STORE KEY --archive`.
COMMAND = re.compile(r"\bstreamkeep ([a-z]+(?: (?:[a-z]+\b|--[a-z-]+|[A-Z]+\b))*)")


def test_commands_that_the_page_prints_run(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with streamkeep.open(store) as opened:
        opened.xadd("k", {"n": 1})
    found = set()
    for path in Path(ui.__file__).parent.rglob("*.*"):
        if path.suffix in (".js", ".html", ".css"):
            text = path.read_text()
            found |= {one[1] for one in COMMAND.finditer(text)}
            assert text.count('command("streamkeep ') == text.count('command("')
    assert {"retention set STORE KEY --archive", "fsck STORE", "dump STORE KEY"} <= found
    values = {"STORE": str(store), "KEY": "k"}
    for words in found:
        known = words.split()
        # What a sentence goes on with is no argument: `streamkeep ui prints its token`.
        name = (
            [*known[:1], "--help"]
            if "STORE" not in known
            else [values.get(one, one) for one in known]
        )
        run(*name)
