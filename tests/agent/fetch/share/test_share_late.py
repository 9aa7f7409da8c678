"""Reads that take longer than the client waits, or than a lock: what was acquired for them breaks no later attempt.

Fault model: the bucket answers when the test says so. Meanwhile the client hangs up and comes again, or the lock ends
and another member gets the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from headrace.agent.fetch.share.deliver import AcquiredRange, ShareDelivery
from headrace.agent.fetch.share.handlers import ShareHandlers
from headrace.agent.fetch.share.sessions import ShareSessions
from headrace.agent.groups.share.group_partitions import GroupPartitions
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.peers.share_turns import Returned, ShareTurn, TurnAnswer
from headrace.protocol.request import ClientConnection
from headrace.storage.clock import Clock
from tests.agent.fetch.share.test_share_requests import Sharing, _parts
from tests.agent.groups.share.test_share_owner import Owning, owning  # noqa: F401 -- the fixture
from tests.manual_clock import ManualClock
from tests.patch import Patch


class Violation(AssertionError):
    """Two members have a record at the same time."""


class _SlowReader:
    """Each read waits for its gate; then `sent` says how many records of it can be sent."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []
        self.sent = [100, 100]

    async def read(
        self, acquired: Mapping[int, Sequence[AcquiredRange]], max_bytes: int, memory: Any, **how: Any
    ) -> dict[int, ShareDelivery]:
        gate, number = asyncio.Event(), len(self.gates)
        self.gates.append(gate)
        await gate.wait()
        return {key: _cut(key, ranges, self.sent[number]) for key, ranges in acquired.items()}


def _cut(key: int, ranges: Sequence[AcquiredRange], sent: int) -> ShareDelivery:
    ((first, last, tries),) = ranges
    end = min(first + sent, last + 1)
    unsent = [Returned(key, end, last)] if end <= last else []
    return ShareDelivery(records=[b"r"], acquired=[(first, end - 1, tries)], returned=unsent)


class Reading:
    """An agent in front of the group's owner, both in one process."""

    def __init__(self, owning: Owning, clock: Clock | None = None) -> None:  # noqa: F811
        """`clock`: by which the agent looks whether locks have ended."""
        self.reader, self.requests = _SlowReader(), Sharing()
        cluster = owning.world.home.cluster
        self._topic_id = cluster.image.topics_by_name["t"].topic_id

        async def ask(turn: ShareTurn, client: ClientConnection, received_at: float) -> TurnAnswer:
            return await owning.owner.turn(turn, client)

        self.requests.handlers = ShareHandlers(
            cluster,
            ShareSessions(lambda: 100),
            self.reader,  # type: ignore[arg-type]
            ask,
            clock or owning.world.clock,
            None,
        )

    def fetch(self, client: ClientConnection, **more: Any) -> asyncio.Task[Any]:
        """Begin a ShareFetch that opens a session; its answer's entity."""
        asked = self.requests.fetch(0, {0: ()}, topic_id=self._topic_id, connection=client, **more)
        return asyncio.create_task(asked)


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    """(first offset, last offset, number of the attempt) of each range that an answer has."""
    parts = _parts(answer)
    ranges = parts[0].acquired_records if 0 in parts else ()
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in ranges]


async def late_return_run(owning: Owning) -> None:  # noqa: F811
    """A member hangs up while its records are read, and gets them again by another connection. Then the first read
    ends, with two records that could not be sent.
    """
    clock, reading = owning.world.clock, Reading(owning)
    reading.reader.sent[0] = 2
    gone, back = ClientConnection(12, "m:1"), ClientConnection(13, "m:2")
    first = reading.fetch(gone, max_records=4)
    await clock.settle()
    gone.closed = True
    assert gone.when_closed is not None
    gone.when_closed()
    second = reading.fetch(back, max_records=4)
    await clock.settle()
    reading.reader.gates[1].set()
    assert acquired(await clock.run(second)) == [(0, 3, 2)]
    reading.reader.gates[0].set()
    await clock.run(first)
    await clock.settle()
    got = (await owning.turn("n", max_records=2))[2]
    if got != [(4, 5, 1)]:
        raise Violation(f"another member got what this one has: {got}")
    if (await owning.turn("m", (0, 3, 1), client=back, wants=False))[1]:
        raise Violation("what the member has is not acknowledged")


async def lock_over_run(owning: Owning, clock_of_agent: Clock | None = None) -> None:  # noqa: F811
    """The lock ends while the records are read, and another member gets them."""
    clock, reading = owning.world.clock, Reading(owning, clock_of_agent)
    late = ClientConnection(11, "m:1")
    fetch = reading.fetch(late, max_records=5)
    await clock.settle()
    await clock.advance(30.5)
    assert (await owning.turn("n", max_records=5))[2] == [(0, 4, 2)]
    reading.reader.gates[0].set()
    answer = await clock.run(fetch)
    if acquired(answer) or any(part.records for part in _parts(answer).values()):
        raise Violation(f"sent after their lock had ended: {acquired(answer)}")
    assert answer.error_code == 0
    await clock.settle()
    assert (await owning.turn("n", (0, 4, 1), wants=False))[1] == 0, "to give them back late frees nothing"


@pytest.mark.requirement("X12")
async def test_what_is_returned_late_breaks_no_lock_of_the_next_attempt(owning: Owning) -> None:  # noqa: F811
    await late_return_run(owning)


@pytest.mark.requirement("X12")
async def test_records_are_not_sent_after_their_lock_has_ended(owning: Owning) -> None:  # noqa: F811
    await lock_over_run(owning)


async def test_what_could_not_be_sent_in_time_is_free_at_once(owning: Owning) -> None:  # noqa: F811
    """The agent's clock is a little ahead: the owner gets the records back before their lock ends."""
    clock = owning.world.clock
    ahead = ManualClock()
    reading = Reading(owning, ahead)
    fetch = reading.fetch(ClientConnection(11, "m:1"), max_records=4)
    await clock.settle()
    ahead.jump(30.0)
    reading.reader.gates[0].set()
    assert acquired(await clock.run(fetch)) == []
    await clock.settle()
    assert (await owning.turn("n"))[2] == [(0, 3, 1)], "it was no attempt"


async def test_a_long_wait_for_records_is_no_part_of_their_lock(owning: Owning) -> None:  # noqa: F811
    clock, reading = owning.world.clock, Reading(owning)
    assert (await owning.turn("n", max_records=20))[2] == [(0, 9, 1)]
    assert (await owning.turn("n", (0, 9, 1), wants=False))[1] == 0
    reading.requests.max_wait = timedelta(seconds=60)
    fetch = reading.fetch(ClientConnection(11, "m:1"))
    await clock.settle()
    await clock.advance(40.0)
    owning.logs.end = 12
    for waiter in owning.logs.waiters:
        waiter.hear(1)
    await clock.settle()
    reading.reader.gates[0].set()
    assert acquired(await clock.run(fetch)) == [(10, 11, 1)]


async def test_the_runs_find_returns_that_are_taken_from_any_connection(
    owning: Owning,  # noqa: F811
    patch: Patch,
) -> None:
    def from_any(self: ShareOwner, owned: GroupPartitions, turn: ShareTurn, client: ClientConnection) -> None:
        for each in turn.returned:
            partition = owned.group.partitions[each.key]
            partition.give_back(turn.member_id, [(each.first, each.last)], is_done=each.is_done)

    patch.replace(ShareOwner, "_give_back", from_any)
    with pytest.raises(Violation):
        await late_return_run(owning)


async def test_the_runs_find_an_agent_that_does_not_look_at_the_time(owning: Owning) -> None:  # noqa: F811
    with pytest.raises(Violation):
        await lock_over_run(owning, ManualClock())
