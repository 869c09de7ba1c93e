"""Encoding and decoding: pure functions from bytes to values and back, without I/O, clock or LMDB.

Rooms, from the bottom up: `core` (errors, IDs, keys, checksums), `lmdb_file` (LMDB's own pages),
`node` (macro nodes), `rows` (records of streams, groups and settings), `journal` (its records, and
checkpoints), `segment` (archive files), `copies` (of a store elsewhere), `redis` (RDB, DUMP, RESP);
`humanize` and `time_buckets` show sizes and times to people, `quoting` and `html` keys and values.
Each layout is defined in one module. Imports no other folder of this package.
"""
