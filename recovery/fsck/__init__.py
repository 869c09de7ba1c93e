"""Checks of a store: one generator of findings per invariant, and what every code means.

`store.check` runs every check; each module is named after what it checks. Nothing here changes a
store, except that the command notes its result in `last_check`.

May import: `recovery.pages`, `engine`, `format`.
"""
