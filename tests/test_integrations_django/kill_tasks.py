"""Tasks for workers that are killed."""

from __future__ import annotations

import random
import time

from streamkeep.jobs import current_job

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def sent(number: int) -> int:
    """Append the number with the acknowledgement; sometimes fail."""
    time.sleep(random.expovariate(100))
    current_job().transaction.xadd("effects", {"number": number})
    if random.random() < 0.1:
        raise OSError("busy")
    return number
