"""Orders that workers of Celery ship, and that are shipped once although workers are killed.

    celery -A celery_orders worker          in as many terminals as you like, each with another -n
    python celery_orders.py 100             sends 100 orders, and waits until they are shipped

A worker may be killed after an order was shipped and before its task was acknowledged: the task
then runs again. So `ship` looks and appends in one transaction.
"""

import os
import sys
import time

from celery import Celery, chord

import streamkeep
import streamkeep.integrations.celery

STORE = os.path.abspath("orders.store")
URL = f"streamkeep:///{STORE}"
app = Celery("celery_orders", broker=URL, backend=URL)
app.conf.task_acks_late = True  # a task of a worker that is killed runs again
app.conf.task_reject_on_worker_lost = True  # also if only a child of the worker is killed


@app.task(name="ship")
def ship(order: str, seconds: float) -> str:
    with streamkeep.open(STORE) as store:
        store.xadd("attempts", {"order": order})
        time.sleep(seconds)
        with store.transaction() as txn:
            if not txn.exists(f"parcel:{order}"):
                txn.xadd(f"parcel:{order}", {"order": order})
    return order


@app.task(name="bill")
def bill(orders: list[str]) -> list[str]:
    return orders


def main(count: int, seconds: float) -> None:
    orders = [f"{os.getpid()}-{number}" for number in range(count)]
    billed = chord([ship.s(order, seconds) for order in orders], bill.s()).delay()
    print(billed.get() == orders and f"{count} orders are shipped")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100, float(sys.argv[2]) if sys.argv[2:] else 0.05)
