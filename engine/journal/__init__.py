"""The journal: one record of changes per commit, and one sync for many commits.

`journal.Journal` writes records and syncs them, and `reader.Reader` reads them for recovery.
`control_file` is the state that the processes of a store share. Callers wait for the disk in
`syncs`, and `sync_leader` elects the process that syncs. May import: `engine.system`, `format`.
Other rooms may use `Journal`, `Reader`, `ControlFile` and `LogPosition`.
"""
