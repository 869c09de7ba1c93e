"""Checks of a store: one generator of findings per invariant, and what every code means.

`store.check` runs every check; each module is named after what it checks. Nothing here changes a
store. May import: `recovery.pages`, `engine`, `format`.
"""
