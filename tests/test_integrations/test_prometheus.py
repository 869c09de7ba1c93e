"""The collector gives prometheus_client what `streamkeep metrics` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="the extra `prometheus` is not installed")

from prometheus_client import CollectorRegistry, generate_latest, parser

import streamkeep
from streamkeep.integrations.prometheus import StoreCollector
from streamkeep.jobs import Queue
from streamkeep.metrics import prometheus_text


def samples(text: str) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    found = set()
    for family in parser.text_string_to_metric_families(text):
        for one in family.samples:
            if "free" not in one.name and "seconds" not in one.name:  # these change
                found.add((one.name, frozenset(one.labels.items()), one.value))
    return found


def test_a_registry_shows_the_figures_of_a_store(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(collector := StoreCollector(tmp_path / "s"))
    assert not (tmp_path / "s").exists()
    with streamkeep.open(tmp_path / "s") as store:
        store.xadd(b'k\xff"', {"n": 1})
        queue = Queue(store)
        queue.put({"n": 1})
        shown = generate_latest(registry).decode()
        assert samples(shown) == samples(prometheus_text(store))
        assert "streamkeep_queue" in shown
    collector.close()


def test_a_store_in_place_of_another_is_shown(tmp_path: Path) -> None:
    collector = StoreCollector(tmp_path / "s")
    for key in (b"former", b"present"):
        with streamkeep.open(tmp_path / "s") as store:
            store.xadd(key, {"n": 1})
        found = {one.name: one.samples for one in collector.collect()}
        assert [one.labels["stream"] for one in found["streamkeep_stream_entries"]] == [
            key.decode()
        ]
        (tmp_path / "s").rename(tmp_path / key.decode())
        with pytest.raises(streamkeep.NotAStoreError):
            list(collector.collect())
    collector.close()
