"""The archive: trimmed entries in zstd segment files, read as one history with the live ones.

`archiver` writes segments, `iterate` reads entries back, `adopt` and `restore` take segments in,
`erase` takes entries out of them, `back_pressure` archives when too much waits.
May import: `engine.store` and what is below.
"""
