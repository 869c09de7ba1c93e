"""The tables of LMDB as structures: what a stream and a group consist of, in one transaction.

`scan` has the searches that all share, `node_walk` goes through macro nodes, `group` and `pel` hold
consumers and pending entries, `lag` and `read_cursor` say how far a group is, `manifest` and
`segment_files` where the archived entries are, `batches` which batch of a pipeline is the newest.
May import: `engine.system`, `txn`. Nothing here checks arguments or knows a command.
"""
