"""Bars for the buckets of a histogram."""

from __future__ import annotations

from streamkeep.format.time_buckets import plan_buckets
from streamkeep.tools.commands.stat_cmd import bars

JUNE_10 = 1_717_977_600_000  # a Monday


def test_bars_show_every_bucket_that_has_entries() -> None:
    plan = plan_buckets(JUNE_10, JUNE_10 + 2 * 3_600_000)
    counts = [1000, 1, 0, 500] + [0] * (len(plan.edges) - 5)
    chart = list(bars(plan, counts, 60, blocks=True))
    assert chart[0].endswith("█")
    assert chart[1].endswith("  1  ▏")
    assert chart[2].endswith("  0")
    assert chart[3].count("█") == chart[0].count("█") // 2
    plain = list(bars(plan, counts, 60, blocks=False))
    assert plain[1].endswith("  1  #")
    assert all(line.isascii() and len(line) <= 60 for line in plain)
