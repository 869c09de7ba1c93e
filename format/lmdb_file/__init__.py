"""LMDB's own pages, as recovery and fsck read them without LMDB.

May import: `format.core`.
"""
