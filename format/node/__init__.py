"""Macro nodes: many entries in one Redis listpack, in an envelope with a checksum.

`node` reads nodes and `ranges` the entries that a read wants, which `sent` writes in Redis's
protocol; `builder` writes nodes, `tombstones` marks deleted entries, `erase` overwrites them,
`check` checks every byte, `dictionary` trains zstd; `listpack`
has the elements. May import: `format.core`.
"""
