"""Repair: copy everything readable of a damaged store into a new one, and report the losses.

`repair` runs the steps: `search` finds what is readable, `streams`, `groups` and `archive` have the
engine write it, `losses` keeps what cannot be put back. May import: `recovery.fsck`,
`recovery.pages`, `engine`, `format`.
"""
