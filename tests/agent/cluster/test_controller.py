"""Controllers on injected time: who is active, what it does, and that a take-over loses nothing."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.cluster.controller.controller import Controller
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.reports import JobCount
from headrace.metastore.log.image import Assignment, MetadataImage
from headrace.metastore.log.own_records import ControlledShutdownRecord
from headrace.metastore.log.reassignment import reassign
from headrace.metastore.log.replay import apply
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.cluster.candidate import TIMES, Candidate
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock
from tests.patch import Patch
from tests.seeds import examples


@pytest.mark.requirement("C15")
async def test_a_killed_controller_is_replaced_within_its_lease_and_a_clean_stop_at_once(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    one, two, three = (Candidate(api, node_id) for node_id in (1, 2, 3))
    await fake_clock.advance(10)
    assert [c.controller.is_active for c in (one, two, three)] == [True, False, False]
    assert [c.metric("controller_active") for c in (one, two, three)] == [1, 0, 0]
    assert {c.controller._held.controller_id for c in (one, two, three)} == {1}

    await one.die()
    await fake_clock.advance(TIMES.lease_ms / 1000)
    assert two.controller.is_active != three.controller.is_active
    assert not one.controller.is_active, "its own deadline has passed"
    active, standby = (two, three) if two.controller.is_active else (three, two)
    await active.controller.stop()
    await fake_clock.advance(1)
    assert standby.controller.is_active
    assert api.controller.controller_epoch == 3
    await standby.controller.stop()


async def _takes_over_in_time(frozen_at: float) -> None:
    """The active one's process is frozen: no link breaks. The standby asks less often than the active one."""
    clock = ManualClock()
    api = FakeClusterApi(clock)
    for node_id in (1, 2):
        api.add_agent(node_id)
    one, two = Candidate(api, 1), Candidate(api, 2)
    await clock.advance(0.001)
    assert one.controller.is_active
    await clock.advance(10 + frozen_at)
    renewed_at = api.controller_until - one.controller._granted_ms / 1000
    await one.die()
    await clock.advance(renewed_at + TIMES.lease_ms / 1000 - clock.monotonic())
    assert two.controller.is_active
    await two.die()


@pytest.mark.requirement("C15")
@settings(max_examples=examples(30))
@given(st.floats(0, 3))
async def test_a_standby_that_asks_rarely_takes_over_within_the_lease(frozen_at: float) -> None:
    await _takes_over_in_time(frozen_at)


async def test_a_standby_that_waits_too_long_is_caught(patch: Patch) -> None:
    """The planted bug: it counts from the answer's lease, not from what is left of the holder's."""
    take = Controller._take

    def from_the_whole_lease(self: Controller, lease: ControllerLease, sent_at: float) -> None:
        take(self, lease._replace(remaining_ms=0 if lease.is_own else TIMES.lease_ms), sent_at)

    patch.replace(Controller, "_take", from_the_whole_lease)
    with pytest.raises(AssertionError):
        await _in_time_at_any_time()


async def _in_time_at_any_time() -> None:
    for tenths in range(30):
        await _takes_over_in_time(tenths / 10)


async def test_a_standby_asks_when_the_lease_may_have_ended(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    for node_id in (1, 2):
        api.add_agent(node_id)
    one, two = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(10)
    api.calls.clear()
    await fake_clock.advance(15)
    assert 15 / 0.75 + 15 / 3 <= api.calls["hold_controller_lease"] <= 15 / 0.75 + 15 / 2 + 1
    assert api.calls["read_metadata"] == 0, "the answers say that the log has not grown"
    for candidate in (one, two):
        await candidate.controller.stop()


@pytest.mark.requirement("C15")
async def test_a_standby_asks_in_every_round_once_the_active_ones_agent_leaves(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    for node_id in (1, 2):
        api.add_agent(node_id)
    one, two = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(10)
    api.append(ControlledShutdownRecord(broker_id=1, broker_epoch=api.agents[1].epoch))
    await two.follower.catch_up()  # as its agent does, before the leaving one may stop
    await one.controller.stop()
    await fake_clock.advance(0.75)
    assert two.controller.is_active
    await two.controller.stop()


@pytest.mark.requirement("C15")
@pytest.mark.parametrize("silent_after", [0.1, 0.4, 0.7, 1.0, 2.5])
async def test_a_silent_agent_is_fenced_within_a_round(
    api: FakeClusterApi, fake_clock: ManualClock, silent_after: float
) -> None:
    one = Candidate(api, 1)
    api.add_agent(1)
    api.add_agent(5)
    await fake_clock.advance(10)
    api.calls.clear()
    api.agents[5].held_until = fake_clock.monotonic() + silent_after
    await fake_clock.advance(silent_after + 0.75)
    assert api.agents[5].fenced
    assert api.calls["fence_silent_agents"] <= 2, "when an agent is silent, and every six seconds"
    await one.controller.stop()


@pytest.mark.requirement("C15")
async def test_a_stopped_controller_that_resumes_is_a_standby(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    """SIGSTOP between its renewal and its next action."""
    one = Candidate(api, 1)
    await fake_clock.advance(0.5)
    hold = api.hold_controller_lease

    async def taken_over_meanwhile(*args: object) -> object:
        held = await hold(*args)  # type: ignore[arg-type]
        if api.controller_incarnation != uuid.UUID(int=9):
            api.controller_until = 0.0
            await hold(9, uuid.UUID(int=9), 60_000)
        return held

    api.hold_controller_lease = taken_over_meanwhile  # type: ignore
    api.add_agent(5)
    api.agents[5].held_until = 0.0
    await fake_clock.advance(3)
    assert not one.controller.is_active
    assert not api.agents[5].fenced, "a stale epoch fences no agent"
    assert one.controller._held.controller_id == 9
    await one.controller.stop()
    assert api.controller_until > fake_clock.monotonic(), "what is another's is not resigned"


async def test_the_own_deadline_counts_from_before_it_asked(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    one = Candidate(api, 1)
    await fake_clock.advance(0.5)
    api.fail_before["hold_controller_lease"] = [UnavailableError("down")] * 100
    await fake_clock.advance(TIMES.granted_ms / 1000 - 0.6)
    assert one.controller.is_active
    await fake_clock.advance(0.2)
    assert not one.controller.is_active, "no other controller took over, but one may"
    await one.controller.stop()


async def test_periodic_jobs_are_kept_by_the_active_controller_only(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    one, two = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(5)
    assert api.scheduled == [["retention", "sweep"]], "seldom, and not by the standby"
    await fake_clock.advance(30)
    assert len(api.scheduled) == 2
    api.fail_before["schedule_jobs"] = [UnavailableError("down")]
    await one.controller.stop()
    await fake_clock.advance(TIMES.lease_ms / 1000 + 3)
    assert len(api.scheduled) == 3, "a new one looks at once, and again after a failure"
    await two.controller.stop()


async def test_the_active_controller_shows_jobs_without_a_worker(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    api.job_counts = [
        JobCount("compact-large", JobState.WAITING, 3, 7_200_000),
        JobCount("compact-large", JobState.LEASED, 1, 0),
        JobCount("compact", JobState.GIVEN_UP, 2, 0),
    ]
    one, two = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(5)
    assert one.metric("jobs_overdue_seconds", kind="compact-large") == 7200
    assert one.metric("jobs_overdue_seconds", kind="compact") == 0
    assert one.metric("jobs", kind="compact-large", state="waiting") == 3
    assert one.metric("jobs", kind="compact", state="given_up") == 2
    assert two.metric("jobs_overdue_seconds", kind="compact-large") is None, "a standby"
    api.job_counts = [JobCount("compact-large", JobState.DONE, 4, 0)]
    await fake_clock.advance(30)
    assert one.metric("jobs_overdue_seconds", kind="compact-large") == 0
    assert one.metric("jobs", kind="compact-large", state="waiting") is None
    await one.controller.stop()
    assert one.metric("jobs", kind="compact-large", state="done") is None, "its last observation becomes out of date"
    await two.controller.stop()


@pytest.mark.requirement("C5")
async def test_silent_agents_are_fenced_by_the_active_controller_only(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    one, two = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(1)
    api.add_agent(7)
    api.agents[7].held_until = fake_clock.monotonic() + 18
    await fake_clock.advance(17)
    assert not api.agents[7].fenced
    await fake_clock.advance(2)
    assert api.agents[7].fenced
    await fake_clock.advance(TIMES.lease_ms / 1000)  # how often a standby looks
    assert {agent.node_id for agent in two.follower.image.agents.values()} == {7}, "still registered"
    assert two.follower.image.live_agents() == []
    for candidate in (one, two):
        await candidate.controller.stop()


@pytest.mark.requirement("C9")
async def test_a_reassignment_survives_a_take_over_and_lost_answers(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    topic_id = api.add_topic("orders", 2)
    api.add_agent(1)
    api.add_agent(2)
    image = apply(MetadataImage(), api.log[:-1])  # 2 is registered, and fenced
    unfenced = api.log.pop()
    api.append(reassign(image, topic_id, 0, [2, 1]))
    one, two = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(5)
    assert two.follower.image.topics_by_id[topic_id].assignment(0).adding == (2, 1)
    await one.die()
    await fake_clock.advance(5)
    assert two.controller.is_active

    api.fail_after["append_records"] = [OutcomeUnknownError("lost")]
    api.log.append(unfenced)
    await fake_clock.advance(5)
    assert two.follower.image.topics_by_id[topic_id].assignment(0) == Assignment((2, 1))
    assert api.calls["append_records"] == 1, "the lost answer was found in the log"
    await two.controller.stop()


class StoppableClock:
    """The clock of a process that SIGSTOP may hold: it sees time pass, but does not wake while it is held."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.runs = asyncio.Event()
        self.runs.set()
        self.monotonic, self.wall_ms = clock.monotonic, clock.wall_ms

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self.runs.wait()


STEPS = st.lists(
    st.tuples(st.sampled_from(("run", "stop", "resume", "down", "up")), st.integers(0, 2), st.floats(0.1, 5)),
    min_size=5,
    max_size=12,
)


@pytest.mark.requirement("C15")
@settings(max_examples=examples(12))
@given(STEPS, st.sampled_from((0.0, 0.3, 0.8)))
async def test_no_two_consider_themselves_active_while_processes_stop_and_resume(
    steps: list[tuple[str, int, float]], latency: float
) -> None:
    clock = ManualClock()
    api = FakeClusterApi(clock)
    api.latency = latency
    clocks = [StoppableClock(clock) for _ in range(3)]
    candidates = [Candidate(api, node_id, clock=clocks[node_id]) for node_id in range(3)]
    epochs = [0]
    for action, node_id, seconds in steps:
        match action:
            case "stop":
                clocks[node_id].runs.clear()
            case "resume":
                clocks[node_id].runs.set()
            case "down":
                api.fail_before["hold_controller_lease"] = [UnavailableError("down")] * 1_000
            case "up":
                api.fail_before["hold_controller_lease"].clear()
        for _ in range(2):
            await clock.advance(seconds / 2)
            assert sum(candidate.controller.is_active for candidate in candidates) <= 1
            epochs.append(api.controller.controller_epoch)
    assert epochs == sorted(epochs)
    api.fail_before["hold_controller_lease"].clear()
    for stopped in clocks:
        stopped.runs.set()
    await clock.advance(2 * TIMES.lease_ms / 1000 + 4 * latency)
    counts = set()
    for _ in range(20):  # with a slow metastore a lease may run out shortly before its renewal is answered
        await clock.advance(0.1)
        counts.add(sum(candidate.controller.is_active for candidate in candidates))
    assert 1 in counts, "one in the end"
    assert max(counts) == 1
    for candidate in candidates:
        await clock.run(candidate.controller.stop())
