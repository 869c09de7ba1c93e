"""Repair: copy everything readable of a damaged store into a new one, and report the losses.

`repair` runs the steps: `tables` and `archive` copy what is readable, `streams`, `groups` and
`messages` rebuild derived data, `lost_found` keeps what cannot be put back. May import:
`recovery.fsck`, `recovery.pages`, `engine`, `format`.
"""
