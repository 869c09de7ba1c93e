"""The journal: one record of changes per commit, and one sync for many commits.

`journal.Journal` writes records under `write_lock.WriteLock` and syncs them. `follower.Follower`
reads them as they come, and `reader.Reader` for recovery. `control_file` is the state that the
processes of a store share. Callers wait for the disk in `syncs`, and `sync_leader` elects the
process that syncs. May import: `engine.system`, `format`. Other rooms may use `Journal`, `Reader`,
`Follower`, `WriteLock`, `ControlFile` and `LogPosition`.
"""
