"""Recovery at the opening of a store, after a crash or a power loss.

`recover` goes back to a checkpoint, replays the journal and says what was lost. `stored_rows` reads
and checks a data file before LMDB opens it. May import: `engine.checkpoint` and the rooms below it.
"""
