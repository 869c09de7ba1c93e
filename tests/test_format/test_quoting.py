"""Keys, fields and values as text that is safe on a terminal and comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format import quoting


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        (b"two words", "two words"),
        ("ü 日本".encode(), "ü 日本"),
        (b"back\\slash", "back\\slash"),
        (b'in"side', 'in"side'),
        (b"", '""'),
        (b'"', r'"\""'),
        (b'"\\', r'"\"\\"'),
        (b"\n\r\t\a\b\x1b[0m\x7f", r'"\n\r\t\a\b\x1b[0m\x7f"'),
        (b"\xff\xfea", r'"\xff\xfea"'),
        ("ü\n".encode(), r'"ü\n"'),
        ("\u202ex\u0085".encode(), r'"\xe2\x80\xaex\xc2\x85"'),
    ],
)
def test_what_is_not_plain_is_quoted_and_escaped(data: bytes, text: str) -> None:
    assert quoting.shown(data) == text


# `st.text` would make a table of all of Unicode first, which takes seconds.
texts = st.lists(st.integers(0, 0x10FFFF).map(chr), max_size=20).map("".join)


@given(st.binary(max_size=20) | texts.map(lambda text: text.encode("utf-8", "ignore")))
def test_quoted_text_is_safe_and_comes_back(data: bytes) -> None:
    text = quoting.quoted(data)
    assert text.isprintable()
    assert quoting.unquoted(text) == data
    assert quoting.shown(data).isprintable()


@given(st.lists(st.tuples(st.binary(min_size=0, max_size=4), st.binary(max_size=4)), min_size=1))
def test_the_short_way_to_text_agrees_with_the_long_one(pairs: list[tuple[bytes, bytes]]) -> None:
    expected = [
        f"{quoting.shown(field, ' =')}={quoting.shown(value, ' ')}" for field, value in pairs
    ]
    assert quoting.pairs_text(pairs) == " ".join(expected)


def test_pairs_are_told_apart() -> None:
    pairs = [(b"a=b", b"c=d"), (b"x y", b"z w"), (b"", b"")]
    assert quoting.pairs_text(pairs) == '"a=b"=c=d "x y"="z w" ""=""'
