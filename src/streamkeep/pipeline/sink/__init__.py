"""DataFrames as entries of a store.

`executor` holds what tasks run, and what they hand to the driver; `writer` has the objects that
Spark sends from one side to the other. `apply` runs on the driver.
"""
