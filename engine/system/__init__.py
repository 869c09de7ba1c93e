"""What the engine needs from the operating system.

`safe_files` opens the files of a store, and `owners` decides whose files it accepts. `clock` is
the only reader of time. `failpoints` are the places where a crash test can stop a process.
`shared_file` and `lock_file` make a full disk an error and not a signal.
`lmdb_errors` translates errors of LMDB and of the system into ours. May import: `format`. Other
rooms may use every public name.
"""
