"""The journal: one record of changes per commit, and one sync for many commits.

`journal.Journal` writes records and syncs them, and `reader.Reader` reads them for recovery.
`control_file` is the state that the processes of a store share. `sync_leader` elects the caller
that syncs. May import: `engine.system`, `format`. Other rooms may use `Journal`, `Reader`,
`ControlFile` and `LogPosition`.
"""
