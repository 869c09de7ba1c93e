"""Crawl a site with four workers: `python crawler.py http://localhost:8000/`.

Kill it, and start it again with or without an address: it continues, and fetches no page twice.
"""

import re
import sys
from threading import Thread
from urllib.parse import urldefrag, urljoin
from urllib.request import urlopen

from streamkeep.jobs import Queue, Worker, current_job

queue = Queue("crawl.store")


@queue.task(retries=2, backoff="100ms..1m", max_runtime="1m")
def visit(url: str, site: str) -> None:
    if queue.store.exists(f"page:{url}"):
        return
    with urlopen(url, timeout=30) as page:
        text = page.read().decode(errors="replace")
    with current_job().transaction as txn:  # the page and its links, with the end of this job
        txn.xadd(f"page:{url}", {"text": text})
        for link in {urldefrag(urljoin(url, one)).url for one in re.findall('href="(.*?)"', text)}:
            if link.startswith(site):
                visit.options(unique=link).delay(link, site)


if __name__ == "__main__":
    queue.resume()  # an earlier run may have left the queue draining
    for site in sys.argv[1:]:
        visit.delay(site, site)
    worker = Worker(queue, concurrency=4)
    thread = Thread(target=worker.run, daemon=True)
    thread.start()
    queue.drain()
    worker.stop()
    thread.join()
    print(len(queue.store.keys("page:*")), "pages")
    for letter in queue.dead_letters():
        print("dead:", letter.fields[b"payload"].decode(), letter.message)
