"""What a new user does first; fails unless the installed package works, is compiled and typed."""

import sys
import tempfile
from pathlib import Path

import streamkeep
from streamkeep.engine.txn import txn

with tempfile.TemporaryDirectory() as folder:
    with streamkeep.open(Path(folder) / "one.store") as store:
        first = store.xadd("orders", {"sku": "7"})
        store.xgroup_create("orders", "mail", id="0")
        [[_, entries]] = store.xreadgroup("mail", "ann", {"orders": ">"})
        if store.xack("orders", "mail", first) != 1 or entries[0].id != first:
            sys.exit("an entry was not delivered and acknowledged")
    with streamkeep.open(Path(folder) / "one.store", readonly=True) as store:
        if [entry.id for entry in store.xrange("orders")] != [first]:
            sys.exit("an entry is missing after the store was opened again")
if not str(txn.__file__).endswith(".so"):
    sys.exit(f"{txn.__file__} is not compiled")
for name in ("py.typed", "facade.pyi", "aio.pyi", "engine/api/async_commands.pyi"):
    if not (Path(streamkeep.__file__).parent / name).is_file():
        sys.exit(f"the package has no {name}")
