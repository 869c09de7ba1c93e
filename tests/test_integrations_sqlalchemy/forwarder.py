"""A program that forks forwarders of an outbox, to be killed; see `fork_server`.

They also die, or get an error of the database, between the steps of a batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import MetaData, create_engine

import streamkeep
from fork_server import serve
from stopped import die
from streamkeep.integrations.sqlalchemy import Outbox
from streamkeep.jobs import outbox

STEPS = ("_select", "_append", "_delete", "_forget")


@dataclass
class Wanted:
    """A forwarder of a database into a store; what it prints is appended to `errors`."""

    url: str
    path: str
    errors: str
    seed: int


def run(asked: dict[str, Any]) -> None:
    wanted = Wanted(**asked)
    engine, rng = create_engine(wanted.url), random.Random(wanted.seed)

    def disturbed(step: Callable[..., Any]) -> Callable[..., Any]:
        def then(*args: Any) -> Any:
            found = step(*args)
            chance = rng.random()
            if chance < (0.3 if step.__name__ == "_append" else 0.03):  # rows are there, and here
                die()
            if chance > 0.99:
                raise engine.dialect.loaded_dbapi.OperationalError("the connection was cut")
            return found

        return then

    for name in STEPS:
        setattr(outbox.Outbox, name, disturbed(getattr(outbox.Outbox, name)))
    with streamkeep.open(wanted.path) as store:
        Outbox(MetaData()).forward(engine, store, every="5ms")


if __name__ == "__main__":
    serve(run, lambda asked: str(asked["errors"]))
