"""Checkpoints: commits of the data file that are known to be completely on disk.

`checkpoint` makes checkpoints and pins their pages. `checkpoint_file` is the file `steady` that
holds them, and the lock of the store. `checkpointer` is the thread that makes them regularly.
May import: `engine.system`, `journal`, `txn`.
"""
