"""Macro nodes: many entries in one Redis listpack, in a checked envelope.

`listpack` and `node` read and write, `check` reads what may be damaged, `tombstones` marks deleted
entries, `erase` overwrites them, `columns` decodes to flat buffers, `dictionary` trains zstd.
May import: `format.core`.
"""
