"""Many stores as one source: finding them, and what of each is new.

A fleet's URI holds the archives of stores, each below its UUID, or folders of stores, or both.
`executor` holds what only tasks run; `pieces` serves both sides. The other modules run on the
driver.
"""
