"""The open store of a process: opening, group commit, growth of the map, limits, closing.

`opening` goes from a path to an `environment.Environment`; `registry` holds one per store and
process; `group_commit` has callers share a transaction; `swap` puts a compacted file in place.
May import: `engine.blocking`, `checkpoint` and what is below them.
"""
