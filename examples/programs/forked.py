"""Flask in workers that fork: `gunicorn --preload --workers 4 forked:app`.

A store does not survive a fork: the child opens it again. `Queue(path)` does so by itself, and so
does `queue.store`. `store()` is the same for a program without a queue.
"""

import os
from functools import cache
from typing import Any

from flask import Flask, request

import streamkeep
from streamkeep.jobs import Queue

app = Flask(__name__)
queue = Queue("web.store")


@cache
def _store_of(process: int) -> streamkeep.Store[str]:
    return streamkeep.open("visits.store", decode_responses=True)


def store() -> streamkeep.Store[str]:
    """Return the store of this process."""
    return _store_of(os.getpid())


@queue.task(retries=5)
def pack(sku: str) -> str:
    return f"{sku}: packed"


@app.post("/orders")
def order() -> Any:
    sku = request.get_json()["sku"]
    with queue.store.transaction() as txn:  # the order and its job: both or neither
        number = txn.xadd("orders", {"sku": sku})
        pack.delay(sku)
    return {"order": number.decode(), "process": os.getpid()}, 201


@app.get("/visits")
def visits() -> Any:
    store().xadd("visits", {"process": os.getpid()})
    return {"visits": store().xlen("visits"), "process": os.getpid()}


store().xadd("visits", {"process": os.getpid()})  # before the fork, with --preload
