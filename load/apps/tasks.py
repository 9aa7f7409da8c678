"""Celery's tasks: each is one produce request that its sender waits for, and one record that the worker polls.

Run by load/apps/__main__.py: `celery -A tasks worker`, and `python tasks.py N`. Not part of Headrace's environment:
celery and kombu[confluentkafka] are installed elsewhere.
"""

from __future__ import annotations

import os
import sys
import time

from celery import Celery  # type: ignore[import-not-found]

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.broker_connection_retry_on_startup = True
DONE = os.environ["DONE"]


@app.task  # type: ignore[untyped-decorator]
def count(number: int) -> None:
    """One line in a file."""
    with open(DONE, "a") as done:
        done.write(f"{number}\n")


def main(tasks: int) -> None:
    """Send so many; print the seconds that sending took."""
    count.delay(-1)  # connects, and creates the topic
    began = time.perf_counter()
    for number in range(tasks):
        count.delay(number)
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(int(sys.argv[1]))
