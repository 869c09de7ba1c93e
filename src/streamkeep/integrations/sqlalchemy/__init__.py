"""SQLAlchemy: an outbox whose rows are written in the transaction of a session.

outbox = Outbox(Base.metadata)
outbox.follow(Order, "orders", lambda order: {"order": order.id})

with Session(engine) as session, session.begin():
    session.add(Order(sku="7"))                       # writes a row by itself
    outbox.append(session, "mails", {"to": "ann"})    # and this one, too

outbox.forward(engine, store, stop=stop)              # in a process of its own
"""

from __future__ import annotations

from streamkeep.integrations.extras import missing

try:
    import sqlalchemy  # noqa: F401
except ImportError as error:
    raise missing("sqlalchemy", error) from error

from streamkeep.integrations.sqlalchemy.outbox import Outbox

__all__ = ["Outbox"]
