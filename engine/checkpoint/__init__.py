"""Checkpoints: commits of the data file that are known to be completely on disk, and recovery.

`checkpoint` makes checkpoints and pins their pages. `checkpoint_file` is the file `steady` that
holds them, and the lock of the store. `checkpointer` is the thread that makes them regularly.
`crash_recovery` goes back to a checkpoint and replays the journal. `extent` and `stored_version`
check a data file before LMDB opens it. May import: `engine.system`, `journal`, `txn`.
"""
