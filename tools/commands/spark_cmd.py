"""spark: the jobs of the data pipeline, on Spark."""

from __future__ import annotations

from streamkeep.tools.base.command import group_command
from streamkeep.tools.commands.spark_lake_cmds import audit, compact, erase, restore, to_lake
from streamkeep.tools.commands.spark_stream_cmds import report, tail


@group_command()
def spark() -> None:
    """Run jobs on Spark: build a lake, compact, audit, erase, report.

    Needs the extra `spark`, which brings Spark, and a Java for machines without one. Without it,
    each command says how to install it.
    A LAKE is a Delta table of Parquet files, one row per entry: a path, or a URI such as
    s3://bucket/lake, with AWS_ACCESS_KEY_ID and so on in the environment. The store stays on a disk
    of the host on which the command runs.

    On a cluster: --master names it, --ship-code or --conf spark.archives=... sends the code there,
    and --tail-export names a folder that all hosts can reach, for live entries.

    \b
    Example, from a store to a lake and a report:
      streamkeep spark to-lake orders.store orders.lake
      streamkeep spark audit orders.store --lake orders.lake
      streamkeep spark report orders.store --output report
    """


for _command in (to_lake, compact, audit, report, restore, tail, erase):
    spark.add_command(_command)
