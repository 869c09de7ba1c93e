"""A program that forwards an outbox until it is killed: URL of the database, path of the store."""

from __future__ import annotations

import sys

from sqlalchemy import MetaData, create_engine

import streamkeep
from streamkeep.integrations.sqlalchemy import Outbox

if __name__ == "__main__":
    with streamkeep.open(sys.argv[2]) as store:
        Outbox(MetaData()).forward(create_engine(sys.argv[1]), store, every="10ms")
