"""Sections of a stream record: unknown ones stay, damaged ones are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.rows.extension import (
    join_sections,
    split_sections,
    with_section,
    without_section,
)

sections = st.dictionaries(st.integers(0, 255), st.binary(max_size=40), max_size=5)


@given(sections)
def test_sections_come_back_in_the_order_of_their_tags(wanted: dict[int, bytes]) -> None:
    found = split_sections(join_sections(wanted), "here")
    assert found == wanted
    assert list(found) == sorted(wanted)


@given(sections, st.integers(0, 255), st.binary(max_size=40))
def test_a_section_is_set_and_removed_and_the_others_stay(
    before: dict[int, bytes], tag: int, data: bytes
) -> None:
    extension = with_section(join_sections(before), tag, data)
    assert split_sections(extension, "here") == before | {tag: data}
    before.pop(tag, None)
    assert split_sections(without_section(extension, tag), "here") == before


@given(sections.filter(bool), st.data())
def test_a_section_that_is_cut_off_is_reported(
    wanted: dict[int, bytes], draw: st.DataObject
) -> None:
    whole = join_sections(wanted)
    cut = draw.draw(st.integers(1, len(whole) - 1))
    ends = {len(join_sections(dict(sorted(wanted.items())[:n]))) for n in range(len(wanted))}
    if cut in ends:
        assert len(split_sections(whole[:cut], "here")) < len(wanted)
        return
    with pytest.raises(CorruptionError, match="is truncated"):
        split_sections(whole[:cut], "here")


def test_a_section_that_is_repeated_is_reported() -> None:
    with pytest.raises(CorruptionError, match="section 7 of the stream record is repeated"):
        split_sections(join_sections({7: b"x"}) * 2, "here")
