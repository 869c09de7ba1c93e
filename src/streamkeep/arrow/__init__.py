"""Macro nodes as Arrow record batches: for frames, for dumps, and for the data pipeline; and back.

`columns` decodes nodes to flat buffers (`column_buffers`), `frames` has the batches that
`Store.to_arrow` returns, `rows` the way back, `batches` what both and the pipeline share. All but
`keys` and the columns need pyarrow, and none Spark or LMDB. This module needs nothing.
"""

from typing import Final

# What happens to a promoted value that is not of its type: it becomes null, or is an error.
PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"
