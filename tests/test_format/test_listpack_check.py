"""Checking listpacks, and the two generations of lengths."""

from __future__ import annotations

from streamkeep.format.node.listpack import encode
from streamkeep.format.node.listpack_check import convert_backlens, validate


def test_both_generations_of_backlens() -> None:
    for size in (16378, 16377, 16379, 2097146):
        older = encode([b"a", b"x" * size, b"7", b"y" * size, b"z"])
        newer = convert_backlens(older, True)
        assert validate(newer) == validate(older) == 5
        assert len(older) - len(newer) == (2 if size in (16378, 2097146) else 0)
        assert convert_backlens(newer, False) == older
        assert convert_backlens(newer, True) is newer
