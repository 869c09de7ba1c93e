"""Copies of a store elsewhere, which follow it: shipping, verifying, restoring, standbys.

Modules: `history` (the records of a store, in order), `target` (the objects of a copy), `writer`
(of one generation), `shipper`, `verify`, `restore`, `standby`.
"""
