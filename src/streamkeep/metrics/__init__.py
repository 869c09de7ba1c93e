"""The figures of a store: rates, lag, pending entries, queues, disk, syncs.

The command line, the server and the queue report these. May import: the engine and the queue.

    figures        what a store, its streams, groups and queues are at one moment
    prometheus     the same as Prometheus text, for an endpoint or the node exporter
"""

from streamkeep.metrics.figures import (
    ArchiveFigures,
    Figures,
    GroupFigures,
    QueueFigures,
    StoreFigures,
    StreamFigures,
    figures_of,
)
from streamkeep.metrics.prometheus import prometheus_text, write_textfile

__all__ = [
    "ArchiveFigures",
    "Figures",
    "GroupFigures",
    "QueueFigures",
    "StoreFigures",
    "StreamFigures",
    "figures_of",
    "prometheus_text",
    "write_textfile",
]
