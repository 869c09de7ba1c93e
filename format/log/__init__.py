"""The bytes that recovery reads: journal records, checkpoint slots, LMDB's own pages.

May import: `format.core`.
"""
