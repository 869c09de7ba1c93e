"""Copies of a store elsewhere, which follow it: shipping, verifying, restoring, standbys.

Modules: `history` (the records of a store, in order), `target` (the objects of a copy), `writer`
(of one generation), `generations` (that the head names), `notes` (in the store, of its copy),
`shipper` (`shipping` runs it), `verify`, `remains` (of what was erased), `restore`, `changes` (the
feed), `standby`.
"""
