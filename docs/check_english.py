"""Find phrases that read as if translated, in the docs and in the texts of the code.

`make lint` runs it. It reads comments and strings of Python files (so docstrings, messages and help
texts as well), and Markdown without code blocks, code spans and generated parts. A phrase may be
broken over lines.

`PHRASES` is the list: a pattern, and what to write instead.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

PHRASES: Final = (
    (r"whoever", "name the actor: the process, the caller, the reader"),
    (r"(?-i:Who) \w+s\b", "name the actor: a process that ..., the caller"),
    (r"(?<!far )(?<!fall )(?<!falls )(?<!left )(?<!leave )behind", "after, in, or below"),
    (r"stands?\b(?! for| still| alone)", "is, is stored"),
    (r"stood\b(?! for)", "was, was stored"),
    (r"whatever (?!happens)\w+s\b", "any ... that"),
    (r"(?:no|some|every)body (?!owns)\w+s\b", "name the actor, or use the passive"),
    (r"(?:no|some|every)body (?:may|can|must|will|who|else)\b", "no process, the caller, ..."),
    (r"anew", "again"),
    (r"meanwhile", "while ..., with the actor named; or leave it out"),
    (r"besides", "also, or in addition to"),
    (r"(?-i:(?<!there )(?:is|was|are) none)\b", "is not a ..., or there is no ..."),
    (r"(?-i:be none)\b", "not be a ..."),
    (r"no look", "does not look"),
    (r"(?:else|otherwise),? (?:it|they|he) were", "or it would be ..."),
    (r"tells (?!apart)", "says, shows or reports"),
    (r"(?:is|are) told", "learns, receives"),
    (r"(?:is|are|was) said\b", "is reported, is documented"),
    (r"(?:no|a) place for", "cannot hold; or dropped: ..."),
    (r"to the letter", "exactly"),
    (r"but for", "except for"),
    (r"all the same\b", "still, anyway"),
    (r"up to where", "up to which ..."),
    (r"as it must", "as expected"),
    (r"puts? up", "registers, adds"),
    (r"let(?:s|ting)? go of", "release"),
    (r"yet to", "has not ... yet"),
    (r"for ever\b", "forever, without limit"),
    (r"of ours", "our ..., Streamkeep's"),
    (r"sees? to\b", "takes care of, handles"),
    (r"gives? back", "returns, releases"),
    (r"by way of", "through, with"),
    (r"(?<!not )so many\b(?! that)", "this many, or the name of the parameter"),
    (r"for so long\b(?! that)", "for this long"),
    (r"belong(?:s|ed)? into", "belong in"),
)
ANY: Final = re.compile("|".join(rf"\b(?:{pattern})" for pattern, _ in PHRASES), re.IGNORECASE)

SKIPPED: Final = (
    "tests/golden/",
    "docs/check_english.py",
    "tests/test_docs/test_english.py",
    "CHANGELOG.md",
)
FENCED: Final = re.compile(
    r"^```.*?^```$|<!-- generated: .*?<!-- end -->|`[^`\n]+`|\]\([^)]*\)", re.MULTILINE | re.DOTALL
)

Words = Iterator[tuple[int, str]]  # words with the number of their line


def words_of_page(text: str) -> Words:
    """Yield the words of a page; a bar takes the place of code and of generated parts."""
    text = FENCED.sub(lambda match: " | " + "\n" * match[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.split():
            yield number, word


def words_of_code(text: str) -> Words:
    """Yield the words of comments and strings; a bar takes the place of code."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                for word in line.strip("#").split():
                    yield number, word
        elif token.string.strip():
            yield token.start[0], "|"


def files() -> Iterator[str]:
    """Yield the path of each file that is to be checked, relative to the root."""
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(".") or top.name in ("build", "dist"):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".py", ".md") and not name.startswith(SKIPPED):
                yield name


def findings(name: str, text: str) -> Iterator[str]:
    """Yield a line for each phrase of a file."""
    words = list(words_of_code(text) if name.endswith(".py") else words_of_page(text))
    joined = " ".join(word for _, word in words)
    if not ANY.search(joined):
        return
    starts = list(accumulate((len(word) + 1 for _, word in words), initial=0))
    for pattern, instead in PHRASES:
        for match in re.finditer(rf"\b(?:{pattern})", joined, re.IGNORECASE):
            number = words[bisect_right(starts, match.start()) - 1][0]
            yield f"{name}:{number}: {match[0]!r}: write instead: {instead}"


def main(args: list[str]) -> int:
    """Check the files that are given, or all; return the exit status."""
    found = [
        line
        for name in args or files()
        for line in findings(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
