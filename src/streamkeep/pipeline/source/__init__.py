"""Streams as DataFrames, in batches and as streams.

`executor` holds what only tasks run. `slices`, `stores`, `stream_nodes` and `losses` serve both
sides, and the two readers are objects that Spark sends from one side to the other. All
other modules run on the driver.
"""
