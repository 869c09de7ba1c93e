"""Where PySpark finds the data source `streamkeep` by itself.

Spark imports every module whose name begins with `pyspark_` and registers its `DefaultSource`. One
that fails to import makes it register none at all, of any package. So this module imports nothing
but that class, whose module in turn loads what it needs when it is used.
"""

from streamkeep.pipeline.data_source import StreamkeepSource as DefaultSource

__all__ = ["DefaultSource"]
