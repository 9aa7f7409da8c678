"""Scenarios of acknowledgements: valid and invalid ones, of others' records, with a fetch, renewals, versions, modes.

Place: in SCENARIOS (__init__.py).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

from tests.compat.share_scenarios.member import (
    ACCEPT_TYPE,
    BATCH_OPTIMIZED,
    GAP_TYPE,
    RECORD_LIMIT,
    REJECT_TYPE,
    RELEASE_TYPE,
    Acknowledgement,
    RawMember,
    accept,
    reject,
    release,
    renew,
)
from tests.compat.share_scenarios.scene import Row, Scene


def acknowledge_records(scene: Scene) -> Iterator[Row]:
    """Accept, release and reject records, some of them twice."""
    scene.produce(10)
    with scene.joined() as member:
        yield "acquire", member.acquire()
        yield "lock in ms", str(member.lock_ms)
        yield "accept 0-4", member.acknowledge(accept(0, 4))
        yield "accept 0-4 again", member.acknowledge(accept(0, 4))
        yield "accept 4-6, 4 is done", member.acknowledge(accept(4, 6))
        yield "release 5, which is done", member.acknowledge(release(5, 5))
        yield "reject 6, which is done, accept 7", member.acknowledge(reject(6, 6), accept(7, 7))
        yield "accept 8, release 9 by types", member.acknowledge(Acknowledgement(8, 9, (ACCEPT_TYPE, RELEASE_TYPE)))
        yield "acquire the released one", member.acquire()
        yield "accept 9", member.acknowledge(accept(9, 9))
        yield "fetch at the end", member.fetch()
        yield "described", scene.described()


def invalid_acknowledgements(scene: Scene) -> Iterator[Row]:
    """Acknowledge what was not acquired, and in forms that the protocol forbids."""
    scene.produce(10)
    with scene.joined(record_limit=5) as member:
        yield "acquire", member.acquire()
        yield "beyond the end, 20-25", member.acknowledge(accept(20, 25))
        yield "5, which was not acquired", member.acknowledge(accept(5, 5))
        yield "3-7, acquired in part", member.acknowledge(accept(3, 7))
        yield "last before first", member.acknowledge(accept(3, 2))
        yield "type 9", member.acknowledge(Acknowledgement(0, 0, (9,)))
        yield "type -1", member.acknowledge(Acknowledgement(0, 0, (-1,)))
        yield "two types for three offsets", member.acknowledge(Acknowledgement(0, 2, (ACCEPT_TYPE, ACCEPT_TYPE)))
        yield "no type", member.acknowledge(Acknowledgement(0, 2, ()))
        yield "descending", member.acknowledge(accept(2, 2), accept(0, 0))
        yield "renewal without the flag", member.acknowledge(renew(0, 0))
        yield "negative offset", member.acknowledge(accept(-1, 2))
        yield "overlapping", member.acknowledge(accept(0, 2), accept(2, 3))
        yield "gap", member.acknowledge(Acknowledgement(0, 0, (GAP_TYPE,)))
        yield "types with a gap", member.acknowledge(Acknowledgement(1, 3, (GAP_TYPE, ACCEPT_TYPE, REJECT_TYPE)))
        yield "the last one", member.acknowledge(accept(4, 4))
        yield "unknown topic", member.acknowledge_at(member.session_epoch, accept(0, 0), topic_id=uuid.uuid4())
        member.session_epoch += 1
        yield (
            "unknown partition",
            member.acknowledge_at(member.session_epoch, accept(0, 0), topic_id=scene.topic_id, partition=7),
        )
        member.session_epoch += 1
        yield "acquire the rest", member.acquire()


def records_of_another_member(scene: Scene) -> Iterator[Row]:
    """Acknowledge what another member acquired."""
    scene.produce(10)
    with scene.joined() as holder, scene.joined() as other:
        yield "one acquires", holder.acquire()
        yield "the other fetches", other.fetch()
        yield "the other accepts", other.acknowledge(accept(0, 4))
        yield "the other releases", other.acknowledge(release(0, 4))
        yield "the one accepts", holder.acknowledge(accept(0, 9))


def fetch_with_acknowledgements(scene: Scene) -> Iterator[Row]:
    """Acknowledge and fetch in one request."""
    scene.produce(10)
    with scene.joined(record_limit=5) as member:
        yield "acquire", member.acquire()
        yield "accept 0-4", member.fetch(accept(0, 4))
        yield "invalid ranges", member.fetch(accept(0, 4), accept(30, 40))
        yield "release 5-9", member.fetch(release(5, 9))


def renewals(scene: Scene) -> Iterator[Row]:
    """Renew locks, renew too late, and renew although the group forbids it."""
    scene.configure(share_record_lock_duration_ms="6000")
    scene.produce(3)
    with scene.joined() as member, scene.joined() as other:
        member.max_records, member.acquire_mode = 3, RECORD_LIMIT
        yield "acquire", member.acquire()
        for number in range(3):
            time.sleep(2.2)
            yield f"renew {number}", _renewed(member, renew(0, 2))
        yield "the other fetches after the first lock's end", other.fetch()
        yield "renew 0, accept 1 in one", _renewed(member, renew(0, 0), accept(1, 1))
        yield "accept 0", member.acknowledge(accept(0, 0))
        yield "renew 1, which is done", _renewed(member, renew(1, 1))
        member.is_renewing = True
        yield "fetch with a renewal, and limits", member.fetch(renew(2, 2))
        member.is_renewing = False
        yield "the other acquires after the end of the lock", other.acquire()
        yield "renew too late", _renewed(member, renew(2, 2))
        scene.configure(share_renew_acknowledge_enable="false")
        yield "renew in a group that forbids it", _renewed(other, renew(2, 2))


def renewal_with_a_fetch(scene: Scene) -> Iterator[Row]:
    """Renew in a fetch, which must not ask for records."""
    scene.produce(3)
    with scene.joined() as member:
        yield "acquire", member.acquire()
        member.is_renewing = True
        member.max_records = member.wait_ms = member.max_bytes = member.min_bytes = 0
        yield "renew 2 with all limits 0", member.fetch(renew(2, 2))


def _renewed(member: RawMember, *acknowledgements: Acknowledgement) -> str:
    member.is_renewing = True
    shown = member.acknowledge(*acknowledgements)
    member.is_renewing = False
    return shown


def version_1(scene: Scene) -> Iterator[Row]:
    """Speak the version without acquire modes and renewals."""
    scene.produce(10)
    with scene.member() as member:
        member.version, member.max_records = 1, 5
        member.join(scene.topic)
        yield "acquire, at most 5", member.acquire()
        yield "accept 0-4", member.acknowledge(accept(0, 4))
        yield "renewal", member.acknowledge(renew(5, 5))
        yield "fetch", member.fetch()


def acquire_modes(scene: Scene) -> Iterator[Row]:
    """Fetch in each acquire mode."""
    scene.produce(10)
    scene.produce(10)
    with scene.joined(record_limit=3) as member:
        yield "3 by record limit", member.acquire()
        member.acquire_mode = BATCH_OPTIMIZED
        yield "3, batch optimized", member.acquire()
        member.max_records = 12
        yield "12, batch optimized", member.acquire()


def fetch_limits(scene: Scene) -> Iterator[Row]:
    """Fetch with limits and modes that make no sense, each in a new session."""
    scene.produce(3)
    with scene.joined() as member:
        yield "acquire", member.acquire()
        for name, changes in {
            "mode 2": {"acquire_mode": 2},
            "at most 0 records": {"max_records": 0},
            "at most -1 records": {"max_records": -1},
            "at most 0 bytes": {"max_bytes": 0},
        }.items():
            with scene.member(str(uuid.uuid4())) as other:
                for field, value in changes.items():
                    setattr(other, field, value)
                yield name, other.fetch()
