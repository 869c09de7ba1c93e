"""The version of the store format, and what each version added.

A store records in `meta` the version that created it, or to which it was upgraded
(`recovery/upgrade.py`). A reader opens every version up to its own and refuses newer ones without
touching them.
"""

from __future__ import annotations

from typing import Final

STORE_VERSION: Final = 4

HISTORY: Final[dict[int, str]] = {
    1: "streams: macro nodes in checked envelopes, records with the tail node; consumer groups: "
    "NACK pages with two indexes; producers and messages of idempotent XADD",
    2: "without the sub-databases `pending_in` and `schedule`, which nothing used; a store of "
    "version 1 keeps them, empty and unread, until it is upgraded",
    3: "with the sub-database `rows`, and with rows of `consumers` that say under which lease a "
    "consumer was given entries; a store of an older version has neither until it is upgraded",
    4: "with the sub-database `names`, which has the name of each stream a second time; a store of "
    "an older version lacks it until it is upgraded. The row of the last recovery has how many "
    "commits were lost",
}
