"""The open store of a process: opening, transactions, growth of the map, limits, closing.

`opening` turns a path into an `environment.Environment`, whose end is in `ending`; `registry` holds
one of them per store and process. `meta` has the rows that describe a store. `group_commit` lets
callers share a transaction. `survey` checks the files, and puts compacted ones in place. May
import: `engine.blocking`, `crash_recovery` and the rooms below them.
"""
