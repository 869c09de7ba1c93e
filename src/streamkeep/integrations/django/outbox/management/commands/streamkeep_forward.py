"""`manage.py streamkeep_forward`: move the rows of the outbox into the store."""

from __future__ import annotations

import json
import signal
import threading
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections, router

from streamkeep.format.core.errors import ArgumentError, StreamkeepError
from streamkeep.format.humanize import count_text
from streamkeep.integrations.django.backend import StreamkeepBackend, backend_named
from streamkeep.integrations.django.outbox.models import OutboxRow
from streamkeep.integrations.django.records import decode
from streamkeep.integrations.django.results import aware
from streamkeep.integrations.outbox_rows import (
    MALFORMED,
    append_row,
    forward_until,
    name_of,
    wrong_row,
)
from streamkeep.jobs import PayloadError
from streamkeep.jobs.outbox import Outbox, Row


class Command(BaseCommand):
    """Move the rows of the outbox into the store."""

    help = (
        "Moves the rows of the outbox into the store of a Streamkeep backend, each exactly once, "
        "until SIGTERM or Ctrl-C. Several may run; a database without a row is asked every second."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--backend", default="default", metavar="ALIAS", help="the name in TASKS (default)"
        )
        parser.add_argument(
            "--database",
            metavar="ALIAS",
            help="by default that of a backend with 'outbox', otherwise where the router writes it",
        )
        parser.add_argument(
            "--every",
            default="1s",
            metavar="DURATION",
            help="how long to wait when there is no row (1s)",
        )
        parser.add_argument("--until-idle", action="store_true", help="end when there is no row")

    def handle(self, *args: Any, **options: Any) -> None:
        backend = backend_named(options["backend"])
        alias = options["database"]
        if not alias:
            alias = backend.database if backend.uses_outbox else router.db_for_write(OutboxRow)
        if alias not in connections.settings:
            known = ", ".join(sorted(connections.settings))
            raise CommandError(f"DATABASES has no database {alias!r}; it has {known}")
        database = connections[alias]
        queue = backend.queue("default")  # opens the store where a full disk is tried again
        given = database.settings_dict
        where = f"{given['HOST']}:{given['PORT']}/{given['NAME']}"
        server = "" if database.vendor == "sqlite" else where

        def put(row: Row) -> None:
            if row["stream"]:
                append_row(queue.store, row)
            else:
                put_task(backend, row)

        def make(connection: Any) -> Outbox:
            table = OutboxRow._meta.db_table
            name = name_of(table, connection, server)
            return Outbox(connection, table, queue.store, put=put, name=name)

        def connect() -> tuple[Any, Callable[[], object]]:
            # Not Django's own: the outbox begins and commits transactions itself. Nor one of a
            # pool: these commit each statement, and closing one gives it back to nobody.
            own = database.copy()
            own.settings_dict["OPTIONS"].pop("pool", None)
            connection = own.get_new_connection(own.get_connection_params())
            return connection, connection.close

        stop = threading.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda got, frame: stop.set())
        try:
            count = forward_until(
                stop,
                connect,
                make,
                (database.Database.Error,),
                every=options["every"],
                until_idle=options["until_idle"],
            )
        except (StreamkeepError, database.Database.Error) as error:
            raise CommandError(str(error)) from error
        self.stderr.write(f"{count_text(count, 'row')} forwarded")


def put_task(backend: StreamkeepBackend, row: Row) -> None:
    """Put the task that a row describes, in the open transaction of the store."""
    try:
        message = json.loads(row["payload"])
        result_id, headers = str(message["id"]), dict(message.get("headers", {}))
        record = decode(row["payload"])
        moment = datetime.fromisoformat(record.run_after) if record.run_after else None
        at = None if moment is None else aware(moment)
        own = backend_named(record.backend)
        enqueue = own.queue(record.queue).prepare(result_id, record, at, headers)
    except (*MALFORMED, CommandError, KeyError, PayloadError) as error:
        raise wrong_row(row, "a task", error) from error
    if not own.keeps_in(backend.path):  # two stores have no transaction in common
        raise ArgumentError(
            f"row {row['id']} of the outbox is a task of the backend {own.alias!r}, and this "
            f"command forwards into the store of {backend.alias!r}; next: --backend {own.alias}"
        )
    enqueue()
