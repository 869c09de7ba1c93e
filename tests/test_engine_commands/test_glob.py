"""Patterns of names, beside a matcher that tries every way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep import CommandError, Store
from streamkeep.engine.commands.glob import MOST_BYTES, Glob


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
