"""metrics: the figures of a store as Prometheus text."""

from __future__ import annotations

from pathlib import Path

from streamkeep.format.core.json_form import json_bytes
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import path_option, store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import open_store


@command()
@store_argument
@path_option(
    "--textfile",
    metavar="FILE",
    help="Write to FILE, for the textfile collector of the node exporter.",
)
def metrics(store_path: Path, textfile: Path | None) -> None:
    """Print the figures of STORE as Prometheus text.

    Streams, groups, queues of jobs, workers, disk, archive. The FILE of --textfile is replaced at
    once, so that the node exporter never reads a half of it. In an application,
    `streamkeep.metrics.prometheus_text(store)` returns the same text.

    \b
    Examples:
      streamkeep metrics orders.store
      streamkeep metrics orders.store --textfile orders.prom
    """
    from streamkeep.metrics import figures_of, write_textfile
    from streamkeep.metrics.prometheus import metrics_of, text_of

    with open_store(store_path, readonly=True) as store:
        if textfile is not None:
            write_textfile(store, textfile)
            output.done(path=str(textfile))
            return
        found = metrics_of(figures_of(store))
    if common.as_json():
        count = 0
        for metric in found:
            for labels, value in metric.samples:
                if value is not None:
                    shown = {
                        name: json_bytes(one) if isinstance(one, bytes) else one
                        for name, one in labels.items()
                    }
                    output.json_line("metric", name=metric.name, labels=shown, value=value)
                    count += 1
        output.summary(metrics=count)
        return
    for line in text_of(found).splitlines():
        output.line(line)
