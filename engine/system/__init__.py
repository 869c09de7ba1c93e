"""What the engine needs from the operating system.

`safe_files` opens the files of a store, and `owners` decides whose files it accepts. `clock` is
the only reader of time. `failpoints` are the places where a crash test can stop a process.
`lmdb_errors` translates errors of LMDB and of the system into ours. May import: `format`. Other
rooms may use every public name.
"""
