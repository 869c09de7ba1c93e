"""Repair: what is readable of a damaged store goes into a new one, the rest is named.

`repair` is the order of steps: `tables` and `archive` copy what is readable, `streams`, `groups`
and `messages` make derived data agree again, `lost_found` keeps what fits nowhere. May import:
`recovery.fsck`, `recovery.pages`, `engine`, `format`.
"""
