"""An audit history: `python audit.py 2000000` records changes, and keeps each of them.

One in twenty stays live. The archive holds the older ones, compressed; the same calls read it.
"""

import sys
from collections import Counter

import streamkeep

if len(sys.argv) != 2:
    sys.exit(__doc__)
total = int(sys.argv[1])

with streamkeep.open("audit.store", decode_responses=True) as store:
    store.set_retention("changes", maxlen=total // 20, archive=True)
    for first in range(0, total, 1000):
        changes = [{"user": f"user {n % 97}", "page": str(n)} for n in range(first, first + 1000)]
        store.xadd_many("changes", changes)
    store.archive()
    changed = Counter(entry.fields["user"] for entry in store.scan("changes", history=True))
    print(f"{store.xlen('changes')} live, {changed.total()} in all; user 7: {changed['user 7']}")
