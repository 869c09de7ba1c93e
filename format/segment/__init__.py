"""Archive segments: `segment` reads them, `writer` writes them, `remains` reads damaged ones.

`index` has the parts after the blocks, `manifest` the row that names a segment. May import:
`format.core`, `format.node`, `format.rows`.
"""
