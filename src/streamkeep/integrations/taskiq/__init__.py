"""taskiq on a store: a broker, a result backend and a schedule source, without a server.

docs/integrations/taskiq.md says how to use them. Needs the extra `taskiq`.
"""

from __future__ import annotations

from streamkeep.integrations.extras import missing

try:
    import taskiq  # noqa: F401
except ImportError as error:
    raise missing("taskiq", error) from error

from streamkeep.integrations.taskiq.broker import StreamkeepBroker
from streamkeep.integrations.taskiq.results import ResultIsMissingError, StreamkeepResultBackend
from streamkeep.integrations.taskiq.schedules import StreamkeepScheduleSource

__all__ = [
    "ResultIsMissingError",
    "StreamkeepBroker",
    "StreamkeepResultBackend",
    "StreamkeepScheduleSource",
]
