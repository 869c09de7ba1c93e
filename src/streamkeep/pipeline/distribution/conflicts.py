"""Trying a commit again after another job was faster.

Of simultaneous commits at least one succeeds, so all jobs get through in the end. A job waits for a
random time before it tries again, longer after each conflict, so that many jobs do not meet again.
"""

from __future__ import annotations

import random
import time
from typing import Final

MOST_CONFLICTS: Final = 1000  # more means a defect: an error is better than a job without end
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 2.0


def wait_after(conflicts: int) -> None:
    """Back off before the next try; `conflicts` counts the failed ones."""
    longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(conflicts, 10))
    time.sleep(random.uniform(0, longest))
