"""The journal: a record of what each commit changed, and one sync for many commits.

`journal.Journal` writes records, `reader.Reader` reads them back for recovery, `control_file` is
what the processes of a store share about it, `sync_leader` elects the caller that syncs.
May import: `engine.system`, `format`. For the rest: `Journal`, `Reader`, `ControlFile`,
`LogPosition`.
"""
