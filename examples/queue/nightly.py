"""A nightly report: `streamkeep work nightly:queue` runs it at three, in the zone of the office.

If no worker ran at three, the report is made when one starts (`missed="once"`).

    python nightly.py STORE
"""

import os
import sys

from streamkeep.jobs import Queue

queue = Queue(os.environ.get("NIGHTLY_STORE", "nightly.store"), "reports")


@queue.periodic("0 3 * * *", tz="Europe/Berlin", missed="once", retries=5, max_runtime="1h")
def report() -> str:
    return "made"


def main(path: str) -> None:
    """Register the rule, show it, and make a report now."""
    with Queue(path, "reports") as own:
        made = own.periodic("0 3 * * *", tz="Europe/Berlin", missed="once")(report.call)
        own.register_periodic()
        rule = own.schedules()[0]
        print(rule.name, rule.cron, rule.zone)
        job = made.delay()
        own.run_until_idle()
        print(job.result(timeout=5))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
