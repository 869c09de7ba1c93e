"""Streams in and out of files: JSON Lines, CSV, Parquet, text, RDB, DUMP payloads, RESP commands.

`dump_*` write what a store holds, `load_*` read it back, `resp_*` say what each command of Redis
does to a store. May import: `tools.base`, `recovery`, `engine`, `format`. Used by the commands
`dump` and `load`.
"""
