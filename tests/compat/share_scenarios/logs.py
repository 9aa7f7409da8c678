"""Scenarios of what happens to the log below a group: removed records, deleted topics, new partitions, transactions.

Place: in SCENARIOS (__init__.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.compat.share_scenarios.member import NOTHING, RawMember, accept, release
from tests.compat.share_scenarios.scene import Row, Scene

WATCHED_SECONDS = 4.0
"""A fetch without records takes half a second (member.WAIT_MS)."""


def records_are_deleted(scene: Scene) -> Iterator[Row]:
    """Delete records while some of them are acquired."""
    scene.produce(10)
    with scene.joined() as member:
        yield "acquire", member.acquire()
        scene.server.delete_records(scene.topic, 5)
        yield "fetch after the deletion of 0-4", member.fetch()
        yield "accept 0-2, below", member.acknowledge(accept(0, 2))
        yield "accept 3-6, across", member.acknowledge(accept(3, 6))
        yield "accept 7, above", member.acknowledge(accept(7, 7))
        yield "described", scene.described()
        yield "release 8-9", member.acknowledge(release(8, 9))
        yield "acquire again", member.acquire()
        scene.server.delete_records(scene.topic, 10)
        yield "fetch after the deletion of all", member.fetch()
        yield "accept 8-9", member.acknowledge(accept(8, 9))
        scene.produce(2)
        yield "acquire new records", member.acquire()


def topic_is_deleted(scene: Scene) -> Iterator[Row]:
    """Delete a topic while its records are acquired, and create it again."""
    scene.produce(10)
    with scene.joined() as member:
        yield "acquire", member.acquire()
        scene.server.delete_topic(scene.topic)
        yield "accept 0-3", member.acknowledge(accept(0, 3))
        yield "fetch", member.fetch()
        yield "heartbeat", member.heartbeat(member.member_epoch, scene.topic)
        scene.topic_id = scene.server.create_topic(scene.topic)
        scene.produce(3)
        yield "heartbeat after the creation", member.heartbeat(member.member_epoch, scene.topic)
        with scene.joined() as other:
            yield "acquire from the new topic", other.acquire()


def partition_is_added(scene: Scene) -> Iterator[Row]:
    """Add a partition to a topic of a group that begins with the latest record."""
    scene.configure(share_auto_offset_reset="latest")
    scene.produce(3)
    with scene.joined() as member:
        yield "partition 0", " ".join(member.fetch() for _ in range(3))
        scene.server.add_partitions(scene.topic, 2)
        scene.produce(3, partition=1)
        member.join(scene.topic, partitions=2)
        with scene.member() as reader:
            first = [reader.fetch(partition=1) for _ in range(6)]
            yield "the new partition's first records", " ".join(each for each in first if each != NOTHING) or NOTHING
            scene.produce(2, partition=1)
            yield "later ones", reader.acquire(partition=1)


def isolation_changes(scene: Scene) -> Iterator[Row]:
    """Change to read_committed during an open transaction: fetches wait until its end."""
    transaction = scene.server.begin_transaction(scene.group)
    for number in range(3):
        transaction.produce(scene.topic, f"open-{number}", partition=0)
    transaction.flush()
    with scene.joined() as member:
        yield "acquire uncommitted records", member.acquire()
        yield "release them", member.acknowledge(release(0, 2))
        scene.configure(share_isolation_level="read_committed")
        yield "fetch committed ones", member.fetch()
        yield "fetches wait", _waits(member)
        scene.produce(2)
        yield "fetch after later records", member.fetch()
        transaction.abort_transaction()
        yield "acquire after the abort", member.acquire()
        yield "fetch the rest", member.fetch()


def open_transaction_next_to_another_topic(scene: Scene) -> Iterator[Row]:
    """Released records of an open transaction keep no other topic from its records."""
    other, other_id = scene.another_topic()
    transaction = scene.server.begin_transaction(scene.group)
    for number in range(120):
        transaction.produce(scene.topic, f"open-{number}", partition=0)
    transaction.flush()
    with scene.member() as member:
        member.join(scene.topic, other, partitions=2)
        yield "acquire uncommitted records", "some" if "x" in member.acquire() else NOTHING
        member.close_session()
        scene.configure(share_isolation_level="read_committed")
        scene.server.produce(other, 5)
        yield "fetch from the first topic", member.fetch()
        yield "acquire from the other", member.acquire(topic_id=other_id)
    transaction.abort_transaction()


def _waits(member: RawMember) -> str:
    """Return whether fetches without records wait, as long as they are asked to."""
    end, count = time.monotonic() + WATCHED_SECONDS, 0
    while time.monotonic() < end:
        if (shown := member.fetch()) != NOTHING:
            return shown
        count += 1
    return "yes" if count <= 2 * WATCHED_SECONDS * 1000 / member.wait_ms else f"{count} fetches"
