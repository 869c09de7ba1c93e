"""Celery on a store: a transport of Kombu and a result backend, without a server.

Importing this package makes `streamkeep:////path` a URL of brokers and of results:

    from celery import Celery
    import streamkeep.integrations.celery

    app = Celery("shop", broker="streamkeep:////var/lib/shop", backend="streamkeep:////var/lib/shop")

docs/integrations/celery.md says what it does. Needs the extra `celery`.
"""

from __future__ import annotations

from streamkeep.integrations.address import SCHEME
from streamkeep.integrations.extras import missing

try:
    from celery.app.backends import BACKEND_ALIASES
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as error:
    raise missing("celery", error) from error

from streamkeep.integrations.celery import workers
from streamkeep.integrations.celery.backend import StreamkeepBackend
from streamkeep.integrations.celery.transport import Transport

__all__ = ["StreamkeepBackend", "Transport", "register"]


def register() -> None:
    """Make Kombu and Celery know the URL scheme; importing the package has done so."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}.transport:Transport"
    BACKEND_ALIASES[SCHEME] = f"{__name__}.backend:StreamkeepBackend"
    workers.follow()


register()
