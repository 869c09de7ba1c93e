"""prometheus_client: the figures of a store among the metrics of a program.

    from prometheus_client import REGISTRY
    REGISTRY.register(StoreCollector(store))

The figures are read when Prometheus asks for them. They are those of `streamkeep metrics`: queues,
streams, groups, disk. An endpoint without prometheus_client returns `metrics.prometheus_text`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from streamkeep.engine.api.store import Store
from streamkeep.integrations.extras import missing
from streamkeep.integrations.values import OpenedStore
from streamkeep.metrics import Figures, figures_of
from streamkeep.metrics.prometheus import metrics_of

try:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing("prometheus", error) from error


class StoreCollector(Collector):
    """Collects the figures of one store."""

    def __init__(self, store: Store[Any] | str | os.PathLike[str]) -> None:
        """Name a store.

        Args:
            store: open, or a path, which is opened at the first collection, also after a fork. If
                the store is moved away later, collections raise NotAStoreError.
        """
        self._opened = OpenedStore(store)

    def describe(self) -> Iterator[Metric]:
        """Name no metrics in advance: the registry would open the store to check the names."""
        return iter(())

    def close(self) -> None:
        """Close the store, if it was opened here; the next collection opens it again."""
        self._opened.close()

    def _figures(self) -> Figures:
        self._opened.check()  # a store that must be recovered may not stay open
        return figures_of(self._opened.store)

    def collect(self) -> Iterator[Metric]:
        for metric in metrics_of(self._opened.use(self._figures)):
            found = Metric(metric.name.removesuffix("_total"), metric.text, metric.kind)
            for labels, value in metric.samples:
                if value is not None:
                    texts = {
                        name: one.decode(errors="backslashreplace")
                        if isinstance(one, bytes)
                        else one
                        for name, one in labels.items()
                    }
                    found.add_sample(metric.name, texts, value)
            if found.samples:
                yield found
