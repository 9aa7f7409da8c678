"""Controllers on injected time: who is active, what it does, and that a take-over loses nothing."""

from __future__ import annotations

import asyncio
import errno
import random
import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.agent_links import AgentLink, Connect
from headrace.agent.cluster.controller.controller import Controller, controller_steps
from headrace.agent.cluster.controller.controller_times import ControllerTimes
from headrace.agent.cluster.controller.metadata_snapshots import MetadataSnapshots
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.metadata_metrics import MetadataMetrics
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.jobs import JobSchedule, JobState
from headrace.metastore.api.reports import JobCount
from headrace.metastore.log.delegation_tokens import TokenTimes, issue_token
from headrace.metastore.log.image import Assignment, MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo, FeatureLevelRecord, UserScramCredentialRecord
from headrace.metastore.log.own_records import ControlledShutdownRecord
from headrace.metastore.log.reassignment import reassign
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import decode_snapshot, encode_snapshot, load_snapshot
from headrace.storage.clock import Clock
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock

TIMES = ControllerTimes(
    lease_ms=3_000, session_timeout_ms=18_000, snapshot_interval_ms=3_600_000, snapshot_bytes=1_000_000
)


@pytest.fixture
def api(fake_clock: ManualClock) -> FakeClusterApi:
    return FakeClusterApi(fake_clock)


async def _unreachable(host: str, port: int) -> AgentLink:
    raise OSError(errno.ECONNREFUSED, "no network in this test")


class Candidate:
    """A controller, its follower, and its metrics."""

    def __init__(
        self,
        api: FakeClusterApi,
        node_id: int,
        times: ControllerTimes = TIMES,
        clock: Clock | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`connect` None: no agent can be reached."""
        self.registry = CollectorRegistry()
        self.follower = MetadataFollower(api)
        own_clock = clock or api.clock
        self.controller = Controller(
            api,
            self.follower,
            lambda: times,
            controller_steps(
                *(api, self.follower, lambda: times, own_clock, self.registry),
                lambda image: [JobSchedule("retention", 300_000), JobSchedule("sweep", 3_600_000)],
            ),
            node_id=lambda: node_id,
            clock=own_clock,
            rng=random.Random(node_id),
            registry=self.registry,
            connect=connect or _unreachable,
        )
        MetadataMetrics(self.follower, self.registry)
        self.controller.start()

    async def die(self) -> None:
        """SIGKILL: nothing is resigned."""
        for task in self.controller._tasks:
            task.cancel()
        await asyncio.gather(*self.controller._tasks, self.controller._links.close(), return_exceptions=True)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"headrace_{name}", labels)


@pytest.mark.requirement("C15")
async def test_a_killed_controller_is_replaced_within_its_lease_and_a_clean_stop_at_once(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    one, two, three = (Candidate(api, node_id) for node_id in (1, 2, 3))
    await fake_clock.advance(10)
    assert [c.controller.is_active for c in (one, two, three)] == [True, False, False]
    assert [c.metric("controller_active") for c in (one, two, three)] == [1, 0, 0]
    assert {c.controller.active_id for c in (one, two, three)} == {1}

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
@settings(max_examples=30)
@given(st.floats(0, 3))
async def test_a_standby_that_asks_rarely_takes_over_within_the_lease(frozen_at: float) -> None:
    await _takes_over_in_time(frozen_at)


async def test_a_standby_that_waits_too_long_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: it counts from the answer's lease, not from what is left of the holder's."""
    take = Controller._take

    def from_the_whole_lease(self: Controller, lease: ControllerLease, sent_at: float) -> None:
        take(self, lease._replace(remaining_ms=0 if lease.is_own else TIMES.lease_ms), sent_at)

    monkeypatch.setattr(Controller, "_take", from_the_whole_lease)
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
    assert one.controller.active_id == 9
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


@pytest.mark.requirement("C3", "C14")
async def test_snapshots_are_made_on_size_and_on_age_and_the_log_is_cut(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    api.add_topic("small", 1)
    one = Candidate(api, 1, replace(TIMES, snapshot_interval_ms=100_000))
    await _pass(fake_clock, 90, one)
    assert api.snapshots == [], "neither big nor old"
    await _pass(fake_clock, 60, one)
    assert [snapshot.end_offset for snapshot in api.snapshots] == [2]
    assert load_snapshot(api.snapshots[0].data) == one.follower.image
    await _pass(fake_clock, 250, one)
    assert len(api.snapshots) == 1, "nothing new, so none on age"

    api.add_topic("big", 30_000)
    await _pass(fake_clock, 70, one)
    assert [snapshot.end_offset for snapshot in api.snapshots] == [2, 30_003]
    assert api.log_start == 1
    assert one.metric("metadata_snapshot_lag_records") == 0
    late = MetadataFollower(api)
    assert await late.catch_up() == one.follower.image
    await one.controller.stop()


async def _pass(clock: ManualClock, seconds: float, candidate: Candidate) -> None:
    """Snapshots are encoded on a thread: virtual time waits for it."""
    for _ in range(round(seconds / 10)):
        await clock.advance(10)
        turn = candidate.controller._steps.steps["metadata snapshots"].turn
        if turn is not None:
            await asyncio.wait([turn])


async def test_a_snapshot_that_does_not_read_back_is_not_kept(
    api: FakeClusterApi, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "headrace.agent.cluster.controller.metadata_snapshots.encode_snapshot",
        lambda image: encode_snapshot(MetadataImage()),
    )
    api.add_topic("orders", 3)
    one = Candidate(api, 1, replace(TIMES, snapshot_bytes=1))
    await _pass(fake_clock, 60, one)
    assert "does not read back: end_offset=4" in caplog.text
    assert api.snapshots == []
    assert one.controller.is_active
    await one.controller.stop()


@pytest.mark.requirement("C14")
async def test_lag_and_what_was_followed_are_counted(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    api.add_topic("orders", 9)
    one = Candidate(api, 1)
    await fake_clock.advance(0.1)
    assert one.metric("controller_metadata_lag_records") == 10
    assert one.metric("metadata_committed_records_total") == 10
    await fake_clock.advance(1)
    assert one.metric("controller_metadata_lag_records") == 0
    api.add_agent(1)
    await fake_clock.advance(1)
    assert one.metric("metadata_committed_records_total") == 12
    assert one.metric("metadata_offset") == 12
    await one.controller.stop()


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
@settings(max_examples=12)
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


@pytest.mark.parametrize("level", [1, 2])
async def test_expired_tokens_are_dropped_where_the_log_has_a_record_for_it(
    api: FakeClusterApi, fake_clock: ManualClock, level: int
) -> None:
    times = TokenTimes(max_lifetime_ms=60_000, expiry_ms=60_000)
    now_ms = fake_clock.wall_ms()
    api.append(
        FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=level),
        issue_token("short", "User:ann", (), max_lifetime_ms=5_000, times=times, now_ms=now_ms),
        issue_token("long", "User:ann", (), max_lifetime_ms=-1, times=times, now_ms=now_ms),
    )
    active, standby = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(4)
    assert active.follower.image.delegation_tokens.keys() == {"short", "long"}
    head = len(api.log)
    await fake_clock.advance(4)
    assert standby.follower.image.delegation_tokens.keys() == ({"long"} if level == 2 else {"short", "long"})
    await fake_clock.advance(4)
    assert len(api.log) == head + (level == 2), "once"
    for candidate in (active, standby):
        await candidate.controller.stop()


def _user_with_password(password: bytes) -> UserScramCredentialRecord:
    info = CredentialInfo(mechanism=1, salt=b"s", salted_password=password, iterations=4096)
    return UserScramCredentialRecord(user_name="a", credential_infos=(info,))


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("is_planted", [False, True])
async def test_after_the_format_is_raised_no_salted_password_is_left(
    api: FakeClusterApi, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, is_planted: bool
) -> None:
    """Neither in the log nor in a snapshot. The planted bug: one snapshot, and the log before the older one stays."""
    if is_planted:
        monkeypatch.setattr(MetadataSnapshots, "_repeat", _repeats_nothing)
    password = b"a salted password"
    api.append(FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=3))
    api.append(_user_with_password(password))
    one = Candidate(api, 1)
    await fake_clock.advance(40)
    assert any(password in record for record in api.log)
    api.append(FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=4))
    await fake_clock.advance(120)
    held = [*api.log[api.log_start :], *(b"".join(decode_snapshot(kept.data)[1]) for kept in api.snapshots)]
    assert any(password in part for part in held) == is_planted
    assert len(one.follower.image.scram_credentials["a"]) == 1
    head = len(api.log)
    await fake_clock.advance(120)
    assert len(api.log) == head, "once"
    await one.controller.stop()


async def _repeats_nothing(self: MetadataSnapshots, epoch: int, image: MetadataImage) -> bool:
    return False
