"""Log lines of a handler say which job they are about."""

from __future__ import annotations

import logging
from pathlib import Path

from streamkeep.integrations.logs import JobFilter, add_job
from streamkeep.jobs import Queue


def test_lines_of_a_handler_name_its_job(tmp_path: Path) -> None:
    lines: list[str] = []
    events: list[dict[str, object]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Keep()
    handler.addFilter(JobFilter())
    handler.setFormatter(logging.Formatter("%(task)s %(job)s %(attempt)s %(queue)s: %(message)s"))
    logger = logging.getLogger("test_logs")
    logger.addHandler(handler)
    with Queue(tmp_path / "s", "mails") as queue:

        @queue.task
        def send() -> None:
            logger.warning("sending")
            events.append(dict(add_job(None, "info", {"event": "sending", "task": "mine"})))

        job = send.delay()
        queue.run_until_idle()
        logger.warning("outside")
        assert lines == [f"send {job.id} 1 mails: sending", "  : outside".replace("  ", "   ", 1)]
        assert events == [
            {"event": "sending", "task": "mine", "queue": "mails", "job": job.id, "attempt": 1}
        ]
    assert dict(add_job(None, "info", {"event": "outside"})) == {"event": "outside"}
    logger.removeHandler(handler)
