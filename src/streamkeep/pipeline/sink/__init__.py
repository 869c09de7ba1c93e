"""DataFrames as entries of a store.

`executor` holds what only tasks run; `staged` serves both sides, and `writer` has the
objects that Spark sends from one side to the other. `apply` runs on the driver.
"""
