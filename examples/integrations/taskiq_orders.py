"""Orders that workers of taskiq ship, and that are shipped once although workers are killed.

    taskiq worker taskiq_orders:broker      in as many terminals as you like; kill any of them
    python taskiq_orders.py 100             sends 100 orders, and waits until they are shipped
    taskiq scheduler taskiq_orders:scheduler        sends one more each minute

A worker may be killed after an order was shipped and before its task was acknowledged: the task
then runs again. So `ship` looks and appends in one transaction.
"""

import asyncio
import os
import sys

from taskiq import TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource

import streamkeep
from streamkeep.integrations.taskiq import StreamkeepBroker, StreamkeepResultBackend

STORE = os.path.abspath("orders.store")
broker = StreamkeepBroker(STORE).with_result_backend(StreamkeepResultBackend(STORE))
scheduler = TaskiqScheduler(broker, sources=[LabelScheduleSource(broker)])


@broker.task(schedule=[{"cron": "* * * * *", "args": ["each minute", 0.0]}])
async def ship(order: str, seconds: float) -> str:
    with streamkeep.open(STORE) as store:
        store.xadd("attempts", {"order": order})
        await asyncio.sleep(seconds)
        with store.transaction() as txn:
            if not txn.exists(f"parcel:{order}"):
                txn.xadd(f"parcel:{order}", {"order": order})
    return order


async def main(count: int, seconds: float) -> None:
    await broker.startup()
    orders = [f"{os.getpid()}-{number}" for number in range(count)]
    sent = await asyncio.gather(*[ship.kiq(order, seconds) for order in orders])
    shipped = [await one.wait_result() for one in sent]
    print([one.return_value for one in shipped] == orders and f"{count} orders are shipped")
    await broker.shutdown()


if __name__ == "__main__":
    # From the module, so that the task has the name that workers know.
    from taskiq_orders import broker, main, ship

    count = int(sys.argv[1]) if sys.argv[1:] else 100
    asyncio.run(main(count, float(sys.argv[2]) if sys.argv[2:] else 0.05))
