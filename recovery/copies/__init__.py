"""Copies of a store elsewhere, which follow it: shipping, verifying, restoring.

Modules: `history` (the records of a store, in order), `target` (the objects of a copy), `shipper`,
`verify`, `restore`.
"""
