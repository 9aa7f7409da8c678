"""Scenarios of the number of a delivery: what raises it, what happens at the limit, what a poison record takes along.

Place: in SCENARIOS (__init__.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from tests.compat.share_scenarios.member import Acknowledgement, RawMember, accept, release
from tests.compat.share_scenarios.scene import Row, Scene

LIMIT = "3"
SHORT_LOCK_MS = 2_000


def poison_batch(scene: Scene) -> Iterator[Row]:
    """Release all that is delivered, again and again: the deliveries shrink before the limit of 5."""
    scene.produce(20)
    with scene.joined() as member:
        member.max_records = 20
        yield from _released(member, 8)


def poison_by_record_limit(scene: Scene) -> Iterator[Row]:
    """The same in the other acquire mode."""
    scene.produce(20)
    with scene.joined(record_limit=8) as member:
        yield from _released(member, 8)


def _released(member: RawMember, times: int) -> Iterator[Row]:
    """Acquire and release all that comes, so many times."""
    for number in range(1, times + 1):
        shown = member.acquire()
        yield f"delivery {number}", shown
        member.acknowledge(*(release(first, last) for first, last in acquired_ranges(shown)))


def acquired_ranges(shown: str) -> list[tuple[int, int]]:
    """Return the ranges of offsets in an answer to a fetch."""
    return [(int(first), int(last)) for first, last in re.findall(r"(\d+)-(\d+)x\d+", shown)]


def releases_until_the_limit(scene: Scene) -> Iterator[Row]:
    """Release records until their attempts are used up."""
    scene.configure(share_delivery_count_limit=LIMIT)
    scene.produce(3)
    with scene.joined() as member:
        yield from _released(member, 5)
        yield "fetch after all are used up", member.fetch()
        yield "described", scene.described()


def sessions_close_until_the_limit(scene: Scene) -> Iterator[Row]:
    """Close the session after each delivery."""
    scene.configure(share_delivery_count_limit=LIMIT)
    scene.produce(3)
    for number in range(1, 6):
        with scene.joined() as member:
            yield f"delivery {number}", member.acquire()
            yield f"close session {number}", member.close_session()
            member.leave()


def connections_end_until_the_limit(scene: Scene) -> Iterator[Row]:
    """End the connection after each delivery."""
    scene.configure(share_delivery_count_limit=LIMIT)
    scene.produce(3)
    for number in range(1, 6):
        with scene.joined() as member:
            yield f"delivery {number}", member.acquire()
        member.leave()


def locks_end_until_the_limit(scene: Scene) -> Iterator[Row]:
    """Let the lock end after each delivery, and acknowledge then."""
    scene.configure(share_delivery_count_limit=LIMIT, share_record_lock_duration_ms=str(SHORT_LOCK_MS))
    scene.produce(3)
    with scene.joined() as member:
        for number in range(1, 6):
            shown = member.acquire()
            yield f"delivery {number}", shown
            time.sleep(SHORT_LOCK_MS / 1000 + 1)
            (first, last), *_ = acquired_ranges(shown)
            yield f"late acknowledgement {number}", member.acknowledge(accept(first, last))


def leave_without_closing_the_session(scene: Scene) -> Iterator[Row]:
    """Leave the group and continue the share session."""
    scene.produce(3)
    with scene.member() as member, scene.member() as other:
        member.join(scene.topic)
        yield "acquire", member.acquire()
        yield "leave", member.leave()
        yield "accept 0", member.acknowledge(accept(0, 0))
        other.join(scene.topic)
        yield "another fetches", other.fetch()
        yield "and again", other.fetch()


def locks_of_a_partition(scene: Scene) -> Iterator[Row]:
    """Acquire up to the limit of record locks of a partition."""
    scene.configure(share_partition_max_record_locks="100")
    scene.produce(300)
    with scene.joined(record_limit=60) as member:
        yield "acquire", member.acquire()
        for number in range(2, 4):
            yield f"fetch {number}", member.fetch()
        yield "accept 50-59", member.acknowledge(accept(50, 59))
        yield "fetch after it", member.fetch()
        yield "accept 0-9", member.acknowledge(accept(0, 9))
        yield "fetch after that", member.fetch()


def every_second_record_is_released(scene: Scene) -> Iterator[Row]:
    """Fetch by record limit what is not adjacent: the limit counts records."""
    scene.produce(20)
    with scene.joined(record_limit=10) as member:
        yield "acquire", member.acquire()
        accepted, released = accept(0, 0).types, release(0, 0).types
        yield "release every second", member.acknowledge(Acknowledgement(0, 9, (accepted + released) * 5))
        shown = member.acquire()
        yield "acquire again", shown
        yield "records", str(_count(shown))


def _count(shown: str) -> int:
    return sum(last - first + 1 for first, last in acquired_ranges(shown))


def late_acceptance_of_what_another_accepted(scene: Scene) -> Iterator[Row]:
    """Accept records after the end of their lock, when another member has accepted them already."""
    scene.configure(share_record_lock_duration_ms=str(SHORT_LOCK_MS))
    scene.produce(3)
    with scene.joined() as late, scene.joined() as other:
        yield "acquire", late.acquire()
        yield "another acquires after the end of the lock", other.acquire()
        yield "another accepts 1-2", other.acknowledge(accept(1, 2))
        yield "the first accepts 1, before 0 is done", late.acknowledge(accept(1, 1))
        yield "another accepts 0", other.acknowledge(accept(0, 0))
        yield "the first accepts 0-2, which are done", late.acknowledge(accept(0, 2))
