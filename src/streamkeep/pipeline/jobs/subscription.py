"""The streams that a job works on, as options of the data source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from streamkeep.pipeline.options import ReadOptions, parse_read, with_full_paths

EVERY_KEY: Final = "(?s).*"


def read_options(
    place: str,
    streams: Sequence[str] | None,
    pattern: str | None,
    *,
    fleet: bool = False,
    tail_export: str | None = None,
    fail_on_data_loss: bool = True,
) -> ReadOptions:
    """Return the options of the data source for a job on streams of a store, or of a fleet."""
    given = {"fleet" if fleet else "path": place, **subscription(streams, pattern)}
    given["failOnDataLoss"] = str(fail_on_data_loss)
    if tail_export is not None:
        given["tailExport"] = tail_export
    return with_full_paths(parse_read(given))


def subscription(streams: Sequence[str] | None, pattern: str | None) -> dict[str, str]:
    """Return the options of the data source that select streams; without either, all."""
    if streams is not None:
        return {"subscribe": json.dumps(list(streams))}
    return {"subscribePattern": pattern if pattern is not None else EVERY_KEY}
