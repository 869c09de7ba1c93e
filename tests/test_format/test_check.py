"""Checking every byte of a node: damage gives our error and takes no memory."""

from __future__ import annotations

import pytest

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import check
from test_format.made_nodes import REDIS_KEY, REDIS_NODE

STRUCTURE = {
    "flags above 3": ("0201 0001 0001 845361726105", "0701 0001 0001 845361726105"),
    "an lp-count that is wrong": ("0701 0501 0301", "0701 0601 0301"),
    "a live count that is wrong": ("1900 0201 0101 0201", "1900 0301 0001 0201"),
    "an ID that does not rise": ("0301 0001 0101 83426f6204", "0301 0001 0001 83426f6204"),
    "a master that does not end": ("816e02 0001", "816e02 0101"),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_validation_finds(name: str) -> None:
    before, after = (bytes.fromhex(text) for text in STRUCTURE[name])
    assert REDIS_NODE.count(before) == 1
    with pytest.raises(CorruptionError):
        check.validate(REDIS_NODE.replace(before, after), *REDIS_KEY)


def test_a_field_count_of_billions_allocates_nothing() -> None:
    elements = bytes.fromhex("0101 0001 f3ffffff7f05")
    data = (6 + len(elements) + 1).to_bytes(4, "little") + b"\x03\x00" + elements + b"\xff"
    with pytest.raises(CorruptionError):
        check.validate(data, 1, 1)
