"""Encoding and decoding: pure functions from bytes to values and back, without I/O, clock or LMDB.

Rooms, from the bottom up: `core` (errors, IDs, keys, checksums), `node` (macro nodes), `rows`
(records of streams, groups and settings), `log` (journal, checkpoint, LMDB's pages), `segment`
(archive files), `redis` (RDB, DUMP, RESP). `describe` annotates the bytes of all of them;
`shown` prints sizes and times for people, `quoting` keys and values. Each byte layout is defined
in one module. Imports no other folder of this package.
"""
