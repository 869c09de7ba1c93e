"""What the engine needs of the operating system.

`files` and its checks are the only way to a file of a store; `clock` is the only reader of time;
`failpoints` are the places where a crash test can stop; `lmdb_errors` turns the errors of LMDB and
of the system into ours. May import: `format`. For the rest: every public name.
"""
