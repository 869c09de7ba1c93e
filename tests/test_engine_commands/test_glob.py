"""Patterns of names, beside a matcher that tries every way."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep import CommandError, Store
from streamkeep.engine.commands.glob import MOST_BYTES, Glob

BYTES = b"ab-]^\\\xff"


def tried(elements: list[set[int] | None], name: bytes) -> bool:
    """Return whether elements match a name; None is a star."""
    ends = {0}  # of what the elements so far may have matched
    for one in elements:
        if one is None:
            ends = set(range(min(ends), len(name) + 1)) if ends else set()
        else:
            ends = {end + 1 for end in ends if end < len(name) and name[end] in one}
    return len(name) in ends


def drawn(source: random.Random) -> tuple[bytes, list[set[int] | None]]:
    """Return a pattern, and what it means."""
    pattern = b""
    meaning: list[set[int] | None] = []
    for _ in range(source.randrange(1, 12)):
        one = source.choice(BYTES)
        kind = source.randrange(6)
        if kind == 0:
            pattern += b"*"
            meaning.append(None)
        elif kind == 1:
            pattern += b"?"
            meaning.append(set(range(256)))
        elif kind == 2:
            members = {source.choice(b"abc") for _ in range(2)}
            negated = source.random() < 0.5
            pattern += b"[" + b"^" * negated + bytes(members) + b"]"
            meaning.append(set(range(256)) - members if negated else members)
        elif kind == 3:
            pattern += b"[a-c]"
            meaning.append(set(b"abc"))
        else:
            pattern += b"\\" + bytes([one])
            meaning.append({one})
    return pattern, meaning


@pytest.mark.parametrize("seed", range(4))
def test_random_patterns(seed: int) -> None:
    source = random.Random(seed)
    found = 0
    for _ in range(3000):
        pattern, meaning = drawn(source)
        glob = Glob(pattern)
        for _ in range(5):
            name = bytes(source.choice(b"aab\\" + BYTES) for _ in range(source.randrange(1, 10)))
            assert glob.matches(name) == tried(meaning, name), (pattern, name)
            found += glob.matches(name)
    assert found > 300


@pytest.mark.parametrize("element", [b"a", b"?a", b"[ab]"])
def test_many_stars_take_no_longer(store: Store, element: bytes) -> None:
    """A matcher that tries every way takes years for this."""
    store.xadd(b"a" * 3000, {"f": "v"})
    pattern = (b"*" + element) * 300 + b"*b"
    assert store.keys(pattern) == []
    assert list(store.scan_iter(match=pattern)) == []
    assert store.keys((b"*" + element) * 300) == [b"a" * 3000]


def test_a_pattern_is_bounded(store: Store) -> None:
    store.xadd(b"a" * MOST_BYTES, {"f": "v"})
    assert store.keys(b"a" * MOST_BYTES) == [b"a" * MOST_BYTES]
    with pytest.raises(CommandError, match="a pattern has 4097 bytes, of 4096 at most"):
        store.keys(b"a" * (MOST_BYTES + 1))


@given(st.text(alphabet="ab*?[]^-\\", max_size=8), st.text(alphabet="ab-^]", max_size=4))
def test_any_text_is_a_pattern(pattern: str, name: str) -> None:
    Glob(pattern.encode()).matches(name.encode())


def test_globs() -> None:
    for pattern, yes, no in (
        ("*", ["", "a\nb"], []),
        ("h?llo", ["hello"], ["hllo"]),
        ("h[ae]llo", ["hallo"], ["hillo"]),
        ("h[^e]llo", ["hallo"], ["hello"]),
        ("h[a-c]llo", ["hbllo"], ["hdllo"]),
        ("h[c-a]llo", ["hbllo"], ["hdllo"]),
        (r"h\*llo", ["h*llo"], ["hello"]),
        (r"h[\]]", ["h]"], ["h"]),
        ("a.c", ["a.c"], ["abc"]),
    ):
        matcher = Glob(pattern.encode())
        assert all(matcher.matches(text.encode()) for text in yes), pattern
        assert not any(matcher.matches(text.encode()) for text in no), pattern
