"""The journal: one record of changes per commit, and one sync for many commits.

`journal.Journal` writes records under `write_lock.WriteLock`, and `reader.Reader` reads them, as
they come or for a recovery. `control_file` is the state that the processes of a store share.
Callers wait for the disk in `syncs`. May import: `engine.system`, `format`. Other rooms may use
`Journal`, `Reader`, `WriteLock`, `ControlFile` and `LogPosition`.
"""
