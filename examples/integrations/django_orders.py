"""Orders that workers of Django's tasks ship, once although workers are killed; a whole project.

    python django_orders.py streamkeep_worker       in as many terminals as you like; kill any
    python django_orders.py ship 100                enqueues 100 orders, and waits for them

A worker may be killed at any time, and the task then runs again. What a task appends through
`current_job().transaction` is stored with the end of its task, or not at all: so it is stored once.
"""

import os
import sys
import time

import django
from django.conf import settings

import streamkeep
from streamkeep.jobs import current_job

STORE = os.path.abspath("orders.store")
if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["streamkeep.integrations.django"],
        TASKS={
            "default": {
                "BACKEND": "streamkeep.integrations.django.StreamkeepBackend",
                "OPTIONS": {"path": STORE},
            }
        },
    )
    django.setup()

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task
def ship(order: str, seconds: float) -> str:
    with streamkeep.open(STORE) as store:
        store.xadd("attempts", {"order": order})
    time.sleep(seconds)
    current_job().transaction.xadd(f"parcel:{order}", {"order": order})
    return order


def main(count: int, seconds: float) -> None:
    orders = [f"{os.getpid()}-{number}" for number in range(count)]
    sent = [ship.enqueue(order, seconds) for order in orders]
    for one in sent:
        while not one.is_finished:
            time.sleep(0.05)
            one.refresh()
    print([one.return_value for one in sent] == orders and f"{count} orders are shipped")


if __name__ == "__main__":
    if sys.argv[1:2] == ["ship"]:
        # From the module, so that the task has the name that workers know.
        from django_orders import main, ship

        count = int(sys.argv[2]) if sys.argv[2:] else 100
        main(count, float(sys.argv[3]) if sys.argv[3:] else 0.05)
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
