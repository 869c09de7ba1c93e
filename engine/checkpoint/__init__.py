"""Checkpoints: the state of the data file that is known to be on disk whole, and recovery to it.

`checkpoint` makes and pins them, `checkpoint_file` is the file `steady` that names them and the
lock of the store, `checkpointer` is the thread that makes them in time, `crash_recovery` goes
back to one and replays the journal. May import: `engine.system`, `journal`, `txn`.
"""
