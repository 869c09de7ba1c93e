"""Archive segments: `segment` reads them, `writer` writes, `remains` reads damaged ones.

`manifest` is the row that names a segment. May import: `format.core`, `format.node`, `format.rows`.
"""
