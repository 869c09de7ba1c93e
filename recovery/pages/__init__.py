"""Reading `data.mdb` without LMDB: pages and trees (`tree`), single rows (`raw_pages`).

May import: `engine`, `format`. Other rooms may use every public name.
"""
