"""The data file read without LMDB: pages, B+trees, and rows wherever they lie.

May import: `format`. For the rest: `page_file`, `tree`, `raw_pages`.
"""
