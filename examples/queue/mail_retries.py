"""Mail through a server that is often down: tried again with growing waits, then a dead letter.

python mail_retries.py STORE
"""

import logging
import sys
from collections import Counter

from streamkeep.jobs import Queue, current_job

calls: Counter[str] = Counter()


def deliver(to: str) -> None:
    """Stand for an SMTP server that refuses the first call, and has no mailbox for `eve`."""
    calls[to] += 1
    if to == "eve":
        raise ValueError("no such mailbox")
    if calls[to] == 1:
        raise ConnectionError("try again later")


def main(path: str) -> None:
    logging.disable(logging.ERROR)  # the queue logs each failure
    with Queue(path, "mails") as queue:

        @queue.task(retries=5, backoff="1ms..10ms", retry_on=OSError)
        def send(to: str) -> str:
            deliver(to)
            return f"{to}: attempt {current_job().attempt}"

        jobs = [send.delay("ann"), send.options(key="bob").delay("bob"), send.delay("eve")]
        while queue.stats().waiting or queue.stats().delayed:
            queue.run_until_idle()
        for job in jobs[:2]:
            print(job.result(timeout=5))
        for letter in queue.dead_letters():
            print(letter.reason)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
