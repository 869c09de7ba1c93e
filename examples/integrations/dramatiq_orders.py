"""Orders that workers of dramatiq ship, and that are shipped once although workers are killed.

    dramatiq dramatiq_orders                in as many terminals as you like; kill any of them
    python dramatiq_orders.py 100           sends 100 orders, and waits until they are shipped

A worker may be killed after an order was shipped and before its message was acknowledged: the
actor then runs again. So `ship` looks and appends in one transaction.
"""

import os
import sys
import time

import dramatiq
from dramatiq.results import Results

import streamkeep
from streamkeep.integrations.dramatiq import StreamkeepBackend, StreamkeepBroker

STORE = os.path.abspath("orders.store")
broker = StreamkeepBroker(STORE)
broker.add_middleware(Results(backend=StreamkeepBackend(STORE)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def ship(order: str, seconds: float) -> str:
    with streamkeep.open(STORE) as store:
        store.xadd("attempts", {"order": order})
        time.sleep(seconds)
        with store.transaction() as txn:
            if not txn.exists(f"parcel:{order}"):
                txn.xadd(f"parcel:{order}", {"order": order})
    return order


def main(count: int, seconds: float) -> None:
    orders = [f"{os.getpid()}-{number}" for number in range(count)]
    sent = [ship.send(order, seconds) for order in orders]
    shipped = [one.get_result(block=True, timeout=3_600_000) for one in sent]
    print(shipped == orders and f"{count} orders are shipped")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100, float(sys.argv[2]) if sys.argv[2:] else 0.05)
