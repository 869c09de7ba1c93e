"""Macro nodes as Arrow record batches: for dumps, and for the data pipeline.

`batches` and `types` need pyarrow, and neither Spark nor LMDB. This module needs nothing.
"""

from typing import Final

# What happens to a promoted value that is not of its type: it becomes null, or is an error.
PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"
