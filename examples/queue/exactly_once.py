"""An exactly-once transform: each word of a text is counted once, though its job fails at first.

What a handler appends through `job.transaction` happens with the acknowledgement of its job.

    python exactly_once.py STORE
"""

import sys
from collections import Counter

from streamkeep.jobs import Queue, current_job

TEXT = "the quick fox and the lazy dog and the cat"


def main(path: str) -> None:
    with Queue(path, "words") as queue:

        @queue.task(retries=3, backoff=0)
        def count(word: str) -> None:
            job = current_job()
            job.transaction.xadd("counted", {"word": word})
            if word == "the" and job.attempt == 1:
                raise OSError("a failure after the append")

        for word in TEXT.split():
            count.delay(word)
        queue.run_until_idle()
        entries = queue.store.xrange("counted")
        for word, times in Counter(one.fields[b"word"].decode() for one in entries).most_common(2):
            print(word, times)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
