"""Counts the records of each key in a table, with Faust: table.py bootstrap data-folder guarantee name

The table is in memory, so each start reads it from its changelog. It keeps the numbers of a key's records. With the
guarantee at_least_once Faust repeats records after a crash or a rebalance, so each number counts once; with
exactly_once the table and the positions change in one transaction, and every number counts. Each count goes to the
topic `name-counted`: Faust writes it without a transaction, because the topic is none of its tables or streams.
"""

from __future__ import annotations

import sys

import faust

bootstrap, folder, guarantee, name = sys.argv[1:5]
app = faust.App(
    name,
    broker=f"kafka://{bootstrap}",
    datadir=folder,
    store="memory://",
    topic_partitions=2,
    topic_replication_factor=1,
    broker_session_timeout=10.0,
    broker_heartbeat_interval=2.0,
    broker_commit_interval=0.2,
    web_enabled=False,
    processing_guarantee=guarantee,
)
words = app.topic(f"{name}-words", key_type=str, value_type=bytes, key_serializer="raw", value_serializer="raw")
counted = app.topic(f"{name}-counted", key_type=str, value_type=str, key_serializer="raw", value_serializer="raw")
numbers = app.Table("counts", default=list)


@app.agent(words)
async def count(stream: faust.Stream[bytes]) -> None:
    """One record after the other, in the order of each partition."""
    async for key, value in stream.items():
        seen = [*numbers[key], int(value)]
        numbers[key] = seen if guarantee == "exactly_once" else sorted(set(seen))
        await counted.send(key=key, value=str(len(numbers[key])))


if __name__ == "__main__":
    sys.argv[1:] = ["worker", "--without-web", "--loglevel", "info"]
    app.main()
