r"""Figures as Prometheus text (the exposition format, version 0.0.4).

`prometheus_text` is what an endpoint of an application returns; `write_textfile` writes it for the
textfile collector of the node exporter. Names of streams and groups are bytes: what is not UTF-8 in
a label is shown as an escape such as \xff. In a name with such bytes, or with such text, each
backslash is doubled, so that no two names get one label.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.engine.system import files
from streamkeep.metrics.figures import (
    Figures,
    GroupFigures,
    QueueFigures,
    StreamFigures,
    figures_of,
)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LIKE_AN_ESCAPE: Final = re.compile(r"\\x[89a-f][0-9a-f]")

Labels = dict[str, bytes | str]
Value = int | float | None


class Metric(NamedTuple):
    """One metric with its samples; a sample without a value is left out.

    Attributes:
        samples: of a histogram, those of its buckets.
        total: of a histogram, the sum and the number of what it counts.
    """

    name: str
    kind: str  # gauge, counter or histogram
    text: str
    samples: list[tuple[Labels, Value]]
    total: tuple[float, int] | None = None


def prometheus_text(store: Store[Any]) -> str:
    """Return the figures of a store as Prometheus text."""
    return text_of(metrics_of(figures_of(store)))


def write_textfile(store: Store[Any], path: str | os.PathLike[str]) -> None:
    """Write the figures of a store to a file, whose name should end with `.prom`.

    The file is replaced at once, so that the node exporter never reads a half of it. A link stays,
    and what it leads to is replaced. A device or a pipe is written directly.
    """
    target = files.behind_links(files.path_of(path, "path"))
    ordinary = target.is_file() or not target.exists()
    text = prometheus_text(store)
    with files.replacing(target) as out:
        out.write(text.encode())
        if ordinary:
            os.fchmod(out.fileno(), 0o644)  # the node exporter is another user


def text_of(metrics: Iterable[Metric]) -> str:
    return "".join(line + "\n" for line in _lines(metrics))


def metrics_of(figures: Figures) -> list[Metric]:
    return [*_of_store(figures), *_of_streams(figures), *_of_groups(figures), *_of_queues(figures)]


def _of_store(figures: Figures) -> Iterator[Metric]:
    store, archive = figures.store, figures.archive
    behind = None if store.durable_commit is None else store.last_commit - store.durable_commit
    for name, text, value in (
        ("commit_number", "The newest commit.", store.last_commit),
        ("epoch", "A number that every recovery raises.", store.epoch),
        ("commits_not_durable", "Commits that are not known to be on disk.", behind),
        ("data_file_bytes", "Size of the data file.", store.data_bytes),
        ("used_bytes", "Bytes of the data file that were ever used.", store.used_bytes),
        ("reusable_bytes", "Used bytes that are free.", store.reusable_bytes),
        ("journal_bytes", "Size of the journal.", store.journal_bytes),
        ("disk_free_bytes", "Free bytes on its disk.", store.disk_free_bytes),
        ("snapshots", "Open snapshots of all processes.", store.snapshots),
        (
            "oldest_snapshot_commits",
            "Commits since the oldest open snapshot.",
            store.oldest_snapshot_commits,
        ),
        ("background_failures", "Kinds of work that fail and are tried again.", store.failures),
        ("archive_segments", "Segments of the archive.", archive.segments),
        ("archive_entries", "Entries in the archive.", archive.entries),
        ("archive_bytes", "Size of the archive.", archive.bytes),
        ("retired_entries", "Trimmed entries that wait to be archived.", archive.retired_entries),
        (
            "retired_bytes",
            "Size of the trimmed entries that wait to be archived.",
            archive.retired_bytes,
        ),
    ):
        yield Metric(f"streamkeep_{name}", "gauge", text, [({}, value)])
    yield Metric(
        "streamkeep_copy_behind_commits",
        "gauge",
        "Commits that a copy elsewhere does not have yet.",
        [({"target": one.target}, one.behind) for one in store.copies],
    )
    yield Metric(
        "streamkeep_copy_shipped_timestamp_seconds",
        "gauge",
        "Time at which commits reached a copy elsewhere.",
        [({"target": one.target}, one.shipped_ms / 1000) for one in store.copies],
    )
    yield Metric(
        "streamkeep_copy_proved_timestamp_seconds",
        "gauge",
        "Time at which a copy elsewhere was verified.",
        [({"target": one.target}, one.proved_ms / 1000) for one in store.copies],
    )
    follows = store.follows
    yield Metric(
        "streamkeep_standby_commit_timestamp_seconds",
        "gauge",
        "Time of the newest commit that a standby has.",
        [] if follows is None else [({"source": follows.source}, follows.time_ms / 1000)],
    )
    redis = store.redis

    def followed(value: float) -> list[tuple[Labels, Value]]:
        return [] if redis is None else [({"source": redis.source}, value)]

    yield Metric(
        "streamkeep_redis_offset_bytes",
        "gauge",
        "Offset, in the commands of the Redis server that the store follows, of the last one here.",
        followed(redis.offset if redis else 0),
    )
    yield Metric(
        "streamkeep_redis_timestamp_seconds",
        "gauge",
        "Time at which that one came.",
        followed(redis.time_ms / 1000 if redis else 0),
    )
    yield Metric(
        "streamkeep_redis_commands_total",
        "counter",
        "Commands of the Redis server that came.",
        followed(redis.commands if redis else 0),
    )
    yield Metric(
        "streamkeep_redis_full_synchronizations_total",
        "counter",
        "How often all streams of the Redis server were taken.",
        followed(redis.full if redis else 0),
    )


def _of_streams(figures: Figures) -> Iterator[Metric]:
    def samples(value: Any) -> list[tuple[Labels, Value]]:
        return [({"stream": one.key}, value(one)) for one in figures.streams]

    def last_s(one: StreamFigures) -> Value:
        return None if one.last_entry_ms is None else one.last_entry_ms / 1000

    yield Metric("streamkeep_stream_entries", "gauge", "Entries.", samples(lambda one: one.length))
    yield Metric(
        "streamkeep_stream_entries_added_total",
        "counter",
        "Entries that were ever added.",
        samples(lambda one: one.entries_added),
    )
    yield Metric(
        "streamkeep_stream_bytes",
        "gauge",
        "Bytes of its macro nodes.",
        samples(lambda one: one.node_bytes),
    )
    yield Metric(
        "streamkeep_stream_last_entry_timestamp_seconds",
        "gauge",
        "Time in the ID of the last entry.",
        samples(last_s),
    )


def _of_groups(figures: Figures) -> Iterator[Metric]:
    def samples(value: Any) -> list[tuple[Labels, Value]]:
        return [
            ({"stream": stream.key, "group": group.name}, value(group))
            for stream in figures.streams
            for group in stream.groups
        ]

    def oldest_s(one: GroupFigures) -> Value:
        return one.oldest_pending_ms / 1000

    for name, text, value in (
        ("lag", "Entries that the group has not read.", lambda one: one.lag),
        ("pending", "Entries that are delivered and not acknowledged.", lambda one: one.pending),
        ("consumers", "Consumers.", lambda one: one.consumers),
        ("consumers_alive", "Consumers whose process lives.", lambda one: one.alive),
        ("consumers_dead", "Consumers whose process has died.", lambda one: one.dead),
        ("oldest_pending_seconds", "Age of the oldest delivery that is pending.", oldest_s),
    ):
        yield Metric(f"streamkeep_group_{name}", "gauge", text, samples(value))


def _of_queues(figures: Figures) -> Iterator[Metric]:
    def samples(value: Any) -> list[tuple[Labels, Value]]:
        return [({"queue": one.name}, value(one.stats)) for one in figures.queues]

    def by_state(one: QueueFigures) -> list[tuple[Labels, Value]]:
        states = ("waiting", "running", "delayed", "failed")
        return [
            ({"queue": one.name, "state": state}, getattr(one.stats, state)) for state in states
        ]

    yield Metric(
        "streamkeep_queue_jobs",
        "gauge",
        "Jobs by state.",
        [sample for one in figures.queues for sample in by_state(one)],
    )
    for name, text, value in (
        ("done", "Jobs that ended well.", lambda one: one.done),
        ("failed", "Jobs that failed for good: dead letters.", lambda one: one.buried),
        ("failed_attempts", "Attempts that failed.", lambda one: one.failed_attempts),
        ("cancelled", "Jobs that were cancelled.", lambda one: one.cancelled),
    ):
        yield Metric(f"streamkeep_queue_{name}_total", "counter", text, samples(value))
    for name, text, value in (
        ("oldest_waiting_seconds", "Age of the oldest job.", lambda one: one.oldest_ms / 1000),
        ("workers", "Processes that live and have taken a job.", lambda one: one.workers),
        ("parked", "Those of the waiting jobs whose task no worker has.", lambda one: one.parked),
        ("paused", "1 while no worker may take a job.", lambda one: int(one.paused)),
    ):
        yield Metric(f"streamkeep_queue_{name}", "gauge", text, samples(value))


# --- text ---------------------------------------------------------------------------------------


def _lines(metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        samples = [(labels, value) for labels, value in metric.samples if value is not None]
        if not samples:
            continue
        yield f"# HELP {metric.name} {metric.text}"
        yield f"# TYPE {metric.name} {metric.kind}"
        sample = metric.name if metric.total is None else f"{metric.name}_bucket"
        for labels, value in samples:
            inside = ",".join(f'{name}="{_escaped(one)}"' for name, one in labels.items())
            yield f"{sample}{{{inside}}} {value}" if inside else f"{sample} {value}"
        if metric.total is not None:
            yield f"{metric.name}_sum {metric.total[0]:.6f}"
            yield f"{metric.name}_count {metric.total[1]}"


def _escaped(value: bytes | str) -> str:
    text = _text(value) if isinstance(value, bytes) else value
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _text(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return name.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    return text.replace("\\", "\\\\") if _LIKE_AN_ESCAPE.search(text) else text
