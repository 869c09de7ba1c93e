"""Spark in the demo: the flights go to a lake, which is queried, audited, plotted and restored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import streamkeep
from archive_steps import KEY
from flight_data import day_ms
from reporting import expect, step
from streamkeep import pipeline

COLUMNS: Final = "carrier string, origin string, dep_delay double"


def run(folder: Path, count: int) -> Path:
    """Run the Spark jobs on the demo's store; return the page with the plots.

    Args:
        count: flights in the stream, archived and live.
    """
    from streamkeep.pipeline.jobs.audit import audit
    from streamkeep.pipeline.jobs.report import report
    from streamkeep.pipeline.jobs.restore import restore
    from streamkeep.pipeline.jobs.to_lake import promoted_columns, to_lake
    from streamkeep.pipeline.spark_session.start import QUIET_JVM

    store, lake = str(folder / "flights.store"), str(folder / "flights.lake")
    shutil.rmtree(lake, ignore_errors=True)
    with step("start Spark") as facts:
        conf: dict[str, Any] = {"spark.driver.extraJavaOptions": QUIET_JVM}
        spark = pipeline.session(fast_start=True, **conf)
        facts.append(f"Spark {spark.version}")
    try:
        with step("all flights into a lake") as facts:
            columns = promoted_columns(spark, COLUMNS)
            done = to_lake(spark, store, lake, streams=[KEY], columns=columns)
            expect("the flights in the lake", done.entries, count)
            again = to_lake(spark, store, lake, streams=[KEY])
            expect("what a second run brings", again.entries, 0)
            per_entry = done.size_bytes / done.entries
            facts.append(f"{done.entries / done.seconds:,.0f} entries/s")
            facts.append(f"{done.files} files, {per_entry:.1f} bytes per entry")
        with step("query the lake") as facts:
            frame = pipeline.read_lake(spark, lake).where("date >= '2013-06-01'")
            rows = frame.groupBy("carrier").avg("dep_delay").orderBy("avg(dep_delay)").collect()
            facts.append(f"{rows[-1][0]} leaves latest, {rows[-1][1]:.1f} minutes on average")
        with step("audit archive and lake") as facts:
            checked = audit(spark, store, lake=lake)
            expect("what the audit found", checked.problems, [])
            facts.append(f"{checked.files} files, nothing wrong")
        with step("March back from the lake") as facts:
            first, last = f"{day_ms('2013-03-01')}-0", f"{day_ms('2013-04-01') - 1}"
            target = folder / "month.store"
            back = restore(spark, lake, str(target), KEY, into="lake", start=first, end=last)
            with streamkeep.open(target, decode_responses=True) as other:
                expect("March from the lake", other.xrange("lake"), other.xrange("month"))
            facts.append(f"{back.entries:,} flights, the same as from the archive")
        with step("a report with plots") as facts:
            drawn = report(
                spark,
                store,
                str(folder / "report"),
                measures=["dep_delay"],
                by=["carrier"],
                streams=[KEY],
            )
            facts.append(f"{drawn.files} files")
    finally:
        spark.stop()
    return folder / "report" / "index.html"
