"""The outbox of a web application: an order and its message are one transaction of its database.

    python web_outbox.py STORE DATABASE

`web_outbox_postgresql.py` does it with PostgreSQL.
"""

import json
import sqlite3
import sys

from streamkeep.jobs import Queue
from streamkeep.jobs.outbox import Outbox

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, sku TEXT);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, message TEXT);
"""


def order(database: sqlite3.Connection, sku: str) -> None:
    """What a request does: both rows, or none."""
    with database:
        database.execute("INSERT INTO orders (sku) VALUES (?)", (sku,))
        database.execute("INSERT INTO outbox (message) VALUES (?)", (json.dumps({"sku": sku}),))


def main(path: str, database_path: str) -> None:
    application, forwarding = sqlite3.connect(database_path), sqlite3.connect(database_path)
    application.executescript(TABLES)
    order(application, "7")
    order(application, "9")
    with Queue(path) as queue:

        @queue.task
        def ship(sku: str) -> str:
            return f"shipped {sku}"

        outbox = Outbox(
            forwarding,
            "outbox",
            queue.store,
            put=lambda row: ship.delay(**json.loads(row["message"])),
        )
        print(outbox.run(once=True), "forwarded")
        print(queue.run_until_idle(), "shipped")
    application.close()
    forwarding.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
