"""Layouts print themselves as tables for the format page."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from streamkeep.format.core.layout import Layout
from streamkeep.format.node import envelope
from streamkeep.format.rows import records

TOP = (1 << 64) - 1
u64 = st.integers(0, TOP)


def test_layouts_print_as_tables() -> None:
    table = records.STREAM_RECORD.table().splitlines()
    assert len(table) == len(records.STREAM_RECORD.fields) + 2
    assert "| 8 | 8 | `last_ms` | u64 | last_generated_id: never decreases |" in table
    assert records.STREAM_RECORD.offset("last_seq") == 16
    assert isinstance(envelope.ENVELOPE, Layout)
    with pytest.raises(KeyError):
        envelope.ENVELOPE.offset("nothing")
