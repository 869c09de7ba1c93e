"""dramatiq on a store: a broker and a results backend, without a server.

docs/integrations/dramatiq.md says how to use them. Needs the extra `dramatiq`.
"""

from __future__ import annotations

from streamkeep.integrations.extras import missing

try:
    import dramatiq  # noqa: F401
except ImportError as error:
    raise missing("dramatiq", error) from error

from streamkeep.integrations.dramatiq.broker import StreamkeepBroker
from streamkeep.integrations.dramatiq.results import StreamkeepBackend

__all__ = ["StreamkeepBackend", "StreamkeepBroker"]
