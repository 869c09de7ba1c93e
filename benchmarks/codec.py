"""The codec alone: entries to listpacks and back. Run as a module it prints its figures as JSON."""

from __future__ import annotations

import gc
import json

from benchmarks.common import best, entries
from streamkeep.arrow.columns import ColumnWriter
from streamkeep.format.node import check, node, ranges
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.envelope import PAGE_LISTPACK

COUNT = 20_000
TOP = (1 << 64) - 1


def measure(repeat: int = 5) -> dict[str, float]:
    """Return entries per second of each operation, and the size of an entry."""
    flats = [[part for pair in fields.items() for part in pair] for fields in entries(COUNT)]
    numbered = [(1_700_000_000_000 + n // 3, n % 3, flat) for n, flat in enumerate(flats)]
    nodes = encode_nodes(numbered, PAGE_LISTPACK)

    def decode(shape: int) -> None:
        for ms, seq, data in nodes:
            out: list[object] = []
            ranges.read_range(data, ms, seq, ranges.Range(0, 0, TOP, TOP, COUNT, False, shape), out)

    def to_columns() -> None:
        writer = ColumnWriter()
        for ms, seq, data in nodes:
            writer.add(data, ms, seq, 0, 0, TOP, TOP)
        writer.finish()

    def validate() -> None:
        for ms, seq, data in nodes:
            check.validate(data, ms, seq)

    gc.disable()
    try:
        figures = {
            "encode": best(lambda: encode_nodes(numbered, PAGE_LISTPACK), repeat),
            "decode to entries": best(lambda: decode(int(node.PAIRS)), repeat),
            "decode to redis-py's shape": best(lambda: decode(int(node.ENTRY)), repeat),
            "decode to columns": best(to_columns, repeat),
            "validate": best(validate, repeat),
        }
    finally:
        gc.enable()
    rates = {name: COUNT / seconds for name, seconds in figures.items()}
    rates["bytes per entry"] = sum(len(data) for _, _, data in nodes) / COUNT
    return rates


if __name__ == "__main__":
    print(json.dumps(measure(repeat=2)))
