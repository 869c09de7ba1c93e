"""A process that changes a store at random, to be killed: `STORE SEED`."""

from __future__ import annotations

import random
import sys

import streamkeep
from inside import context_of
from replayed import Mutator

if __name__ == "__main__":
    path, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    mutator = Mutator(chance)
    with streamkeep.open(path, sync="none", node_max_entries=5) as store:
        context_of(store).memtable.most_commits = chance.choice((20, 1000))
        print("open", flush=True)
        while True:
            mutator.change(store)
