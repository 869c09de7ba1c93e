"""The archive: trimmed entries in compressed segment files, read together with the live ones.

`archiver` writes segments, and `iterate` reads their entries. `adopt` and `restore` bring segments
into a store, `erase` removes entries from them, and `back_pressure` archives when too much has been
retired. May import: `engine.store` and the rooms below it.
"""
