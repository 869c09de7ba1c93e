"""Fan-out: one order makes a job in each of two queues, in the transaction that appends the order.

python fan_out.py STORE
"""

import sys

import streamkeep
from streamkeep.jobs import Queue


def main(path: str) -> None:
    with streamkeep.open(path) as store:
        mails, stock = Queue(store, "mails"), Queue(store, "stock")

        @mails.task(key="mail server", retries=10, backoff="5s..10m")
        def confirm(order: str) -> str:
            return f"mail about {order}"

        @stock.task
        def reserve(order: str) -> str:
            return f"reserved for {order}"

        with store.transaction() as txn:  # all three, or none
            txn.xadd("orders", {"id": "7"})
            jobs = [confirm.delay("7"), reserve.delay("7")]
        mails.run_until_idle()
        stock.run_until_idle()
        for job in jobs:
            print(job.result(timeout=5))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
