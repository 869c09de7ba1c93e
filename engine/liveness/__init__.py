"""Leases: which processes that consume are alive, as the kernel knows it.

A lease is a file in `leases/` that its process keeps locked. Nothing here knows a transaction; the
rows that say what was delivered under which lease are in `engine/tables/lease_rows.py`. May import:
`engine.notify`, `engine.system`, `format`. For the rest: `Leases`, its states, `DeathWatch`.
"""
