"""The change feed: each commit of the store as effects in terms of streams.

`effects` compares the rows that a record changes; `feed` reads the records of an open store, from
its newest checkpoint on. Loaded at the first call of `Store.changes`.
May import: the rooms below, and `format`.
"""
