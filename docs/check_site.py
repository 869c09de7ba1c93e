"""Find what a built site would load from another host; `make site` runs it.

A page may link to another host, but scripts, styles, fonts and pictures must be files of the site,
and they must exist.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

# Attributes whose file a browser loads by itself. The rest of `link` are only hints.
LOADED: Final = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
LOADED_LINKS: Final = ("stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "manifest")
IN_STYLES: Final = re.compile(r"(?:@import\s+|url\()\s*['\"]?((?:https?:)?//[^'\")\s]+)")


class Loads(HTMLParser):
    """Collects the addresses that a page loads, and those that it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a":
            self.links.append(values.get("href") or "")
        elif tag == "link" and set((values.get("rel") or "").split()) & set(LOADED_LINKS):
            self.loads.append(values.get("href") or "")
        elif tag in LOADED:
            self.loads.append(values.get(LOADED[tag]) or "")


def findings(site: Path) -> Iterator[str]:
    """Yield a line for each file that is loaded from elsewhere, or is missing."""
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        found = Loads()
        found.feed(text)
        name = page.relative_to(site)
        for address in [*found.loads, *IN_STYLES.findall(text)]:
            parts = urlsplit(address)
            if parts.netloc:
                yield f"{name}: loads {address}; put the file into docs/site"
        for address in [*found.loads, *found.links]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            root = site if parts.path.startswith("/") else page.parent
            if not (root / unquote(parts.path).lstrip("/")).exists():
                yield f"{name}: {address} does not exist"
    for style in sorted(site.rglob("*.css")):
        for address in IN_STYLES.findall(style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)}: loads {address}; put the file into docs/site"


def main(args: list[str]) -> int:
    """Check the site in a folder; return the exit status."""
    if len(args) != 1 or not (Path(args[0]) / "index.html").is_file():
        print("usage: check_site.py FOLDER, which `make site` has written", file=sys.stderr)
        return 2
    found = list(findings(Path(args[0])))
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
