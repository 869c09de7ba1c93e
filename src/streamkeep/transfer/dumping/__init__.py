"""Streams of a snapshot out of a store: one module for each format, and `source` for all of them.

May import `engine`, `format`, and of `transfer` only `formats`; Parquet uses
`arrow`. Used by `transfer.dump_file` and, for one group, by the command `dump`.
"""
