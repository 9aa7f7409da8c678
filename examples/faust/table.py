"""Counts the records of each key in a table, with Faust: table.py bootstrap data-folder

The table is in memory, so each start reads it from its changelog. It keeps the numbers of a key's records: Faust
repeats records after a rebalance, and they count once. Each count goes to the topic `faust-counted`.
"""

from __future__ import annotations

import sys

import faust

bootstrap, folder = sys.argv[1:3]
app = faust.App(
    "faust",
    broker=f"kafka://{bootstrap}",
    datadir=folder,
    store="memory://",
    topic_partitions=2,
    topic_replication_factor=1,
    broker_commit_interval=0.2,
    web_enabled=False,
    processing_guarantee="at_least_once",
)
words = app.topic("faust-words", key_type=str, value_type=bytes, key_serializer="raw", value_serializer="raw")
counted = app.topic("faust-counted", key_type=str, value_type=str, key_serializer="raw", value_serializer="raw")
numbers = app.Table("counts", default=list)


@app.agent(words)
async def count(stream: faust.Stream[bytes]) -> None:
    """One record after the other, in the order of each partition."""
    async for key, value in stream.items():
        numbers[key] = sorted({*numbers[key], int(value)})
        await counted.send(key=key, value=str(len(numbers[key])))


if __name__ == "__main__":
    sys.argv[1:] = ["worker", "--without-web", "--loglevel", "info"]
    app.main()
