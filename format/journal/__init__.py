"""The bytes that recovery reads first: journal records, positions in the journal, checkpoints.

May import: `format.core`, `format.lmdb_file`.
"""
