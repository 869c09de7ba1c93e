"""The group record: its table, and records that no store writes."""

from __future__ import annotations

import pytest

from streamkeep.format.core.errors import (
    CorruptionError,
)
from streamkeep.format.core.keys import LAST_MEMBER, LAST_NUMBER
from streamkeep.format.rows import group_records
from streamkeep.format.rows.nacks import ORDERS, OWNED

TOP = (1 << 64) - 1


def test_the_group_record_is_what_its_table_says() -> None:
    group = group_records.GroupRecord(b"a name", 1, 2, 3)
    names = [field.name for field in group_records.GROUP_RECORD.fields][:-1]
    for place, name in enumerate(names, start=1):
        setattr(group, name, place)
    group.inline_nacks = b"nacks"
    body = group.encode()
    values = (*range(1, len(names) + 1), len(group.inline_nacks))
    assert group_records.GROUP_RECORD.struct.unpack_from(body) == values
    assert vars_of(group_records.decode_group(body, "here")) == vars_of(group)
    tops = {"number": LAST_NUMBER, "last_ms": TOP, "next_order": ORDERS, "consumers": LAST_MEMBER}
    for name, top in tops.items():
        setattr(group, name, top)
    group.entries_read = group_records.UNKNOWN
    group.inline_nacks = b"n" * 0x7FFF
    assert vars_of(group_records.decode_group(group.encode(), "here")) == vars_of(group)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", LAST_NUMBER + 1),
        ("next_order", ORDERS + 1),
        ("last_order_time", OWNED),
        ("consumers", LAST_MEMBER + 1),
    ],
)
def test_group_records_that_no_store_writes_are_refused(name: str, value: int) -> None:
    group = group_records.GroupRecord(b"a name", 1, 2, 3)
    setattr(group, name, value)
    with pytest.raises(CorruptionError):
        group_records.decode_group(group.encode(), "here")


def vars_of(group: group_records.GroupRecord) -> list[object]:
    """Return everything that a group's row says, compiled or not."""
    names = [field.name for field in group_records.GROUP_RECORD.fields][:-1]
    return [getattr(group, name) for name in [*names, "inline_nacks", "name"]]
