"""Streams as text for people: long values and long lists of pending entries are cut."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from streamkeep.engine.commands.dump import counters_of, group_part
from streamkeep.engine.tables.group import Group, groups_of
from streamkeep.engine.tables.lag import lag as lag_of
from streamkeep.format.humanize import count_text, entries_text, time_text
from streamkeep.format.quoting import brief_pairs, named
from streamkeep.format.redis.stream_parts import NOBODY, GroupPart
from streamkeep.transfer.dumping.source import Source

_MOST_PENDING: Final = 20  # of a consumer


class TextWriter:
    """Writes streams as text through `write`."""

    def __init__(self, source: Source, write: Callable[[bytes], object]) -> None:
        self._source = source
        self._write = write

    def _line(self, text: str) -> None:
        self._write(text.encode("utf-8", "backslashreplace") + b"\n")

    def dump(self) -> None:
        """Write all streams."""
        for stream in self._source:
            counters = counters_of(stream, 0)
            self._line(f"stream {named(stream.name)}")
            last = "{}-{}".format(*counters.last_id)
            deleted = "{}-{}".format(*(counters.max_deleted_id or (0, 0)))
            self._line(
                f"  {entries_text(counters.length)}, {counters.entries_added:,} added, "
                f"last generated ID {last}, max deleted ID {deleted}"
            )
            for ms, seq, flat in self._source.read(stream):
                pairs = list(zip(flat[0::2], flat[1::2], strict=True))
                self._line(f"  {ms}-{seq}  {brief_pairs(pairs)}")
            if self._source.limits.whole:
                for group in groups_of(self._source.txn, stream):
                    self.group(group, lag_of(stream.record, group.record))

    def group(self, group: Group, lag: int | None) -> None:
        """Write one group."""
        part = group_part(group)
        last = "{}-{}".format(*part.last_id)
        told = "unknown" if lag is None else f"{lag:,}"
        self._line(f"  group {named(part.name)}: last delivered ID {last}, lag {told}")
        for place, consumer in enumerate(part.consumers):
            self._line(f"    consumer {named(consumer.name)}")
            self._pending(part, place)
        if part.zone:
            self._line("    nobody")
            self._pending(part, NOBODY)

    def _pending(self, part: GroupPart, place: int) -> None:
        mine = [one for one in part.pending if one.consumer == place]
        for one in islice(mine, _MOST_PENDING):
            when = f", delivered {time_text(one.delivery_time)}" if place != NOBODY else ""
            times = count_text(one.delivery_count, "time")
            self._line(f"      {one.ms}-{one.seq}  {times}{when}")
        if len(mine) > _MOST_PENDING:
            self._line(f"      and {len(mine) - _MOST_PENDING:,} more")
