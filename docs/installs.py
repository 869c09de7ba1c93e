"""The commands in the pages that install Streamkeep: the package, or a clone before a release.

`streamkeep.supported.RELEASED` decides; `docs/generate.py` writes the commands again. In a block
the place is a comment, in a sentence it comes after the closing back quote:

    pip install .  # in a clone of Streamkeep
    `pip install .` in a clone of Streamkeep
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from streamkeep import supported

_COMMAND: Final = re.compile(
    r"pip install (?:'(?:streamkeep|\.)\[(?P<extra>[\w,]+)\]'|(?:streamkeep|\.)(?=[`\s]|$))"
    r"(?P<more>(?: [a-z][\w-]*)*)(?P<quote>`?)"
    r"(?: *#? in a clone of Streamkeep)?",
    re.MULTILINE,
)


def pages(root: Path) -> Iterator[Path]:
    """Yield the pages that say how to install; decisions stay as they were made."""
    yield from root.glob("README.md")
    for page in sorted((root / "docs").rglob("*.md")):
        if page.parent.name != "decisions":
            yield page


def with_installs(text: str) -> str:
    """Return a page with every such command as it is now."""

    def written(found: re.Match[str]) -> str:
        command, space, place = supported.install_hint(found["extra"] or "").partition(" in a ")
        if found["quote"]:
            space = "`" + space
        elif space:
            space = "  #" + space
        return command + found["more"] + space + place

    return _COMMAND.sub(written, text)
