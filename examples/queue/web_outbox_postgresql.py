"""The outbox of a web application whose database is PostgreSQL.

    python web_outbox_postgresql.py STORE 'host=/var/run/postgresql dbname=shop'

An order and its message are one transaction of the database. A row of the outbox becomes one job,
also if this program is killed at any step, or runs twice at the same time.
"""

import sys

import psycopg
from psycopg.types.json import Jsonb

from streamkeep.jobs import Queue
from streamkeep.jobs.outbox import Outbox

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sku TEXT);
CREATE TABLE IF NOT EXISTS outbox (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message JSONB);
"""


def order(database: psycopg.Connection, sku: str) -> None:
    """What a request does: both rows, or none."""
    with database.transaction():
        database.execute("INSERT INTO orders (sku) VALUES (%s)", (sku,))
        database.execute("INSERT INTO outbox (message) VALUES (%s)", (Jsonb({"sku": sku}),))


def main(path: str, conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as application:
        application.execute(TABLES)
        order(application, "7")
        order(application, "9")
    with Queue(path) as queue, psycopg.connect(conninfo) as forwarding:

        @queue.task
        def ship(sku: str) -> str:
            return f"shipped {sku}"

        outbox = Outbox(
            forwarding, "outbox", queue.store, put=lambda row: ship.delay(**row["message"])
        )
        print(outbox.run(once=True), "forwarded")
        print(queue.run_until_idle(), "shipped")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
