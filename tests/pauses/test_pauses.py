"""SIGSTOP an agent past its lease and resume it, after any step: no loss, no duplicate, no two owners."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.agent.cluster import membership
from headrace.agent.cluster.controller.controller import Controller
from headrace.agent.cluster.membership import Membership
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.groups.consumer.members import ConsumerMember
from headrace.agent.groups.members import reconciliation
from headrace.agent.groups.members.reconciliation import reconcile
from headrace.agent.serve import housekeeping
from headrace.metastore.api.read import Extent
from tests.model import metastore_model
from tests.pauses.plan import FORWARDING, SCHEDULES, Schedule, all_sites, few_steps
from tests.pauses.sites import Site
from tests.pauses.world import World
from tests.planted import PlantedBugs, Trial

FORWARD = "agent/peers/forwarding/"
EVERYDAY = (*reversed(SCHEDULES), *FORWARDING)
"""Each meets awaits that the earlier ones do not. The one in which agent 1 comes second is short, so it is first."""
PARTS = 4
EVERYDAY_PARTS = (0,)
"""A quarter of the awaits; `make test-all` has the others, and each step."""
STEP_PARTS = {SCHEDULES[0]: 14, SCHEDULES[1]: 6, FORWARDING[0]: 2, FORWARDING[1]: 2}
"""Each part takes a minute or two of CPU time, far from the limit of wall time also on a busy machine."""
EVERY_STEPS = {**dict.fromkeys(SCHEDULES, 1), **dict.fromkeys(FORWARDING, 25)}
NEVER_MET = {
    "agent/produce/pipeline.py:ProducePipeline._handle_in_turn#3": "no batch is so large that a thread reads it",
    "agent/produce/receive.py:Receiver.read_records#1": "likewise",
    "agent/produce/receive.py:Receiver.read_records#2": "likewise",
    "agent/produce/receive.py:Receiver.receive_later#2": "no producer is transactional",
    "agent/produce/receive.py:Receiver._check_producers#1": "likewise",
    "agent/fetch/handler.py:AwaitedLog._locate#3": "after a catch-up the index answers at once",
    "agent/groups/held_groups.py:HeldGroups._follow_metadata#1": "there are few groups",
    "agent/groups/held_groups.py:HeldGroups._keep_time#2": "there are few groups",
    "agent/groups/held_groups.py:HeldGroups._look_at#1": "no claim is without an answer",
    "agent/groups/held_groups.py:HeldGroups._before_members#1": "no link names a group",
    "agent/groups/held_groups.py:HeldGroups._store#1": "few groups are stored at once",
    "agent/groups/held_groups.py:HeldGroups._load#1": "no id is long, and rows of the metastore have no limit",
    "agent/groups/offsets/group_offsets.py:GroupOffsets.commit#1": "likewise",
    "agent/groups/offsets/group_offsets.py:GroupOffsets._with_room#1": "likewise",
    "agent/groups/offsets/group_offsets.py:GroupOffsets._with_room#2": "likewise",
    "agent/groups/offsets/group_offsets.py:GroupOffsets.commit_pending#1": "no producer is transactional",
    "agent/groups/offsets/group_offsets.py:GroupOffsets.commit_pending#2": "likewise",
    "agent/groups/offsets/group_offsets.py:GroupOffsets._add_pending#1": "likewise",
    "agent/produce/receive.py:Receiver.receive_later#3": "no batch is so large that a thread reads it",
    "agent/produce/receive.py:Receiver.receive_later#4": "no topic doubles",
    "agent/produce/receive.py:Receiver._find_moved_keys#1": "likewise",
    "agent/produce/receive.py:Receiver._find_moved_keys#2": "likewise",
    "agent/produce/receive.py:Receiver.receive_later#5": "no topic has limits of timestamps",
    "agent/produce/receive.py:Receiver.receive_later#6": "likewise",
    "agent/cluster/membership.py:Membership._register_again#1": "no other agent makes this one leave",
    "agent/cluster/membership.py:Membership._step#5": "likewise",
    "agent/cluster/controller/controller.py:Controller._follow#1": "the feed has brought the image to its end",
    "agent/cluster/controller/controller.py:Controller._work#3": "likewise",
    "agent/cluster/controller/controller.py:Controller._work#1": "likewise",
    "agent/cluster/controller/controller.py:Controller._keep_working#3": "controllers have no links here",
    "agent/cluster/controller/controller.py:Controller._attempt#2": "no round fails by an error of this process",
    "agent/cluster/controller/controller.py:Controller._abstain#1": "likewise",
    "agent/cluster/controller/controller.py:Controller._on_gone#1": "no process is gone without leaving",
    "agent/cluster/controller/controller.py:Controller._on_gone#2": "likewise",
    "agent/cluster/controller/controller.py:Controller._succeed#1": "likewise",
    "agent/cluster/controller/upkeep_steps.py:MetadataSnapshots._log_has_passwords#1": "the log has no password",
    "agent/cluster/controller/upkeep_steps.py:MetadataSnapshots._repeat#1": "likewise",
    "agent/cluster/controller/upkeep_steps.py:MetadataSnapshots.keep#2": "likewise",
    "agent/cluster/controller/upkeep_steps.py:MetadataSnapshots.keep#7": "likewise",
    "agent/cluster/controller/upkeep_steps.py:MetadataSnapshots.keep#8": "likewise",
    "agent/cluster/follower.py:MetadataFollower._read_to_head#2": "another log: the metastore was restored",
    "agent/fetch/handler.py:FetchHandler.handle#2": "ACLs are not enforced",
    "agent/fetch/handler.py:FetchHandler._serve_allowed#1": "likewise",
    "agent/fetch/handler.py:AwaitedLog._locate_acknowledged#2": "the index was brought up to date just before",
    "agent/fetch/handler.py:AwaitedLog._wait#1": "the index has been asked just before: it answers",
    "agent/fetch/zone_cache/shared.py:SharedCache._read#2": "what no neighbour sends is in this agent's memory",
    "agent/fetch/handler.py:FetchHandler._serve#1": "the image has every topic that consumers name",
    "agent/fetch/handler.py:FetchHandler._serve#3": "memory for answers is free",
    "agent/fetch/handler.py:FetchHandler._serve#5": "nothing in the bucket is damaged",
    "agent/fetch/handler.py:FetchHandler._serve_all#2": "no consumer reads a rendered topic here",
    "agent/fetch/handler.py:FetchHandler._serve_all#3": "likewise",
    "agent/fetch/handler.py:FetchHandler._serve_all#4": "likewise",
    "agent/fetch/handler.py:FetchHandler._wait_for_rendered#1": "likewise",
    "agent/fetch/handler.py:FetchHandler._wait_for_rendered#2": "likewise",
    "agent/fetch/handler.py:FetchHandler._wait_for_rendered#3": "likewise",
    "agent/fetch/handler.py:_have_news#1": "likewise",
    "agent/fetch/service.py:FetchService.close#2": "the metastore never goes back here: nothing is recorded",
    "agent/fetch/service.py:FetchService.close#3": "nothing in the bucket is damaged",
    "agent/fetch/service.py:FetchService.close#4": "no call to a neighbour is in progress when it closes",
    "agent/fetch/zone_cache/serving.py:ZoneCache.close#1": "likewise",
    "agent/fetch/zone_cache/shared.py:SharedCache.close#1": "likewise",
    "agent/fetch/zone_cache/serving.py:ZoneCacheServer._read#1": "the owner has what its neighbour asks for in memory",
    "agent/fetch/zone_cache/shared.py:Peers._exchange#1": "two calls never open one connection at once",
    "agent/fetch/service.py:FetchService.close#5": "no load is in progress when it closes",
    "agent/groups/classic/coordinator.py:ClassicCoordinator.sync#1": "a group is loaded by a heartbeat or a join first",
    "agent/groups/classic/coordinator.py:ClassicCoordinator.leave#3": "likewise",
    "agent/groups/classic/coordinator.py:ClassicCoordinator.leave#1": "members of one address leave",
    "agent/groups/members/heartbeats.py:HeartbeatCoordinator.heartbeat#2": "consumer groups ask nothing",
    "agent/groups/members/heartbeats.py:HeartbeatCoordinator._refusal#1": "likewise",
    "agent/groups/members/heartbeats.py:HeartbeatCoordinator.heartbeat#4": "a thread matches patterns",
    "agent/groups/consumer/coordinator.py:ConsumerGroups._match#1": "likewise",
    "agent/groups/members/heartbeats.py:HeartbeatCoordinator.heartbeat#7": "no topic doubles",
    "agent/groups/consumer/coordinator.py:ConsumerGroups._look#1": "likewise",
    "agent/groups/consumer/coordinator.py:ConsumerGroups._positions#1": "likewise",
    "agent/groups/consumer/coordinator.py:ConsumerGroups._positions#2": "likewise",
    "agent/groups/consumer/coordinator.py:ConsumerGroups._positions#3": "likewise",
    "agent/groups/members/heartbeats.py:HeartbeatCoordinator.heartbeat#8": "the group has not moved",
    "agent/groups/offsets/group_offsets.py:GroupOffsets._store#1": "likewise",
    "agent/groups/offsets/group_offsets.py:GroupOffsets.fetch#1": "likewise",
    "agent/groups/offsets/group_offsets.py:GroupOffsets.fetch#2": "a member of an older protocol asks without a name",
    "agent/peers/forwarding/forwarding.py:Forwarding._finish#2": "a stopped agent goes on before links are given up",
    "agent/peers/forwarding/forwarding.py:Forwarding._join#1": "no request is for groups of both agents",
    "agent/peers/forwarding/service.py:ForwardServer._outcome#1": "memory for answers is free",
    "agent/peers/forwarding/service.py:ForwardServer._outcome#3": "answers are short",
    "agent/cluster/controller/upkeep_steps.py:SettingRecorder.record#2": "the cluster has all values",
    "agent/fetch/handler.py:ReplyClaim.claim#1": "memory for answers is free",
    **dict.fromkeys(
        (
            *(f"agent/fetch/service.py:LogEndsOfIndex._since#{number}" for number in range(1, 5)),
            *(f"agent/fetch/service.py:LogEndsOfIndex.beginnings#{number}" for number in (1, 2)),
            "agent/fetch/service.py:LogEndsOfIndex._special#1",
            "agent/fetch/service.py:LogEndsOfIndex.ends#1",
            "agent/fetch/service.py:LogEndsOfIndex.high_watermarks#1",
        ),
        "there are no share groups",
    ),
    **dict.fromkeys(
        (
            *(f"agent/groups/classic/coordinator.py:DescribeGroups.__call__#{number}" for number in (1, 2, 3)),
            "agent/groups/classic/coordinator.py:DescribeGroups._describe#1",
            "agent/groups/classic/coordinator.py:DescribeGroups._found#1",
        ),
        "no tool describes groups",
    ),
}
"""Awaits at which these schedules never wait, and what would take them there."""


@pytest.fixture(autouse=True)
def _clean_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule is shorter than the pauses of housekeeping."""
    monkeypatch.setattr(housekeeping, "INTERVAL_SECONDS", 0.3)


@pytest.fixture(autouse=True)
def _join_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that comes back is away for longer, so that others meet its absence; there is no outage to mistake."""
    monkeypatch.setattr(membership, "JOINS_PER_LEASE", 0.5)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Leave out what agents log of pauses: it is not what failed."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def _run(schedule: Schedule, step: int | None) -> set[Site]:
    world = schedule.world(step)
    world.run()
    assert world.problems == [], f"schedule={schedule} paused after step {step} at {sorted(map(str, world.paused_at))}"
    return world.paused_at


@functools.cache
def _watched(schedule: Schedule) -> World:
    """A run without a pause."""
    world = schedule.world()
    world.run()
    return world


def _chosen_steps(schedule: Schedule) -> list[int]:
    """A step for each await that this schedule meets and no earlier one does."""
    earlier: set[Site] = set()
    for each in EVERYDAY[: EVERYDAY.index(schedule)]:
        earlier |= {site for sites in _watched(each).sites.values() for site in sites}
    return few_steps(_watched(schedule), FORWARD if schedule.forwards else "", without=earlier)


@pytest.mark.requirement("C5", "C15", "W1", "W7")
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=() if part in EVERYDAY_PARTS else pytest.mark.slow) for part in range(PARTS)]
)
@pytest.mark.parametrize("schedule", EVERYDAY, ids=str)
def test_an_agent_paused_at_any_await_does_no_harm(schedule: Schedule, part: int) -> None:
    assert _watched(schedule).problems == []
    for step in _chosen_steps(schedule)[part::PARTS]:
        _run(schedule, step)


def test_these_awaits_are_all_there_are() -> None:
    met: set[Site] = set()
    for schedule in EVERYDAY:
        sites = _watched(schedule).sites
        for step in few_steps(_watched(schedule), FORWARD if schedule.forwards else ""):
            met |= sites[step]
    assert {str(site) for site in all_sites() - met} == set(NEVER_MET)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_an_agent_paused_at_any_await_of_each_schedule_does_no_harm(schedule: Schedule) -> None:
    for step in few_steps(_watched(schedule)):
        _run(schedule, step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "part"),
    [pytest.param(each, part, id=f"{each}-{part}") for each, parts in STEP_PARTS.items() for part in range(parts)],
)
def test_an_agent_paused_after_any_step_does_no_harm(schedule: Schedule, part: int) -> None:
    """After every one, or every 25th if agents forward; a part takes every so many of these."""
    distance = EVERY_STEPS[schedule]
    for step in range(1 + part * distance, _watched(schedule).steps + 1, STEP_PARTS[schedule] * distance):
        _run(schedule, step)


PLANTED = PlantedBugs("pauses", most=500)
STEPS = {SCHEDULES[0]: 1_400, SCHEDULES[1]: 550}
"""About how many an agent takes in a run."""


def _problems(seed: int) -> list[str]:
    """Return what is wrong with one run that is paused after one step; a run that never ends is wrong, too."""
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    world = schedule.world(1 + seed // len(SCHEDULES) % STEPS[schedule])
    try:
        world.run()
    except AssertionError as error:
        return [*world.problems, str(error)]
    return world.problems


def impatient(member: ConsumerMember, **more: Any) -> ConsumerMember:
    """Gives away partitions that their last owner has not revoked yet: the roster refuses, so no member continues."""
    return reconcile(member, **more | {"held_by_others": lambda key: False})


BUGS: dict[str, tuple[Any, str, Any, str]] = {
    "a controller that forgets its deadline": (
        *(Controller, "is_active", property(lambda self: self._held.lease is not None and self._held.lease.is_own)),
        "controllers",
    ),
    "an agent that forgets its lease": (Membership, "holds_lease", lambda self: True, "two coordinators"),
    "a hasty assignment": (reconciliation, "reconcile", impatient, "members go on"),
    "a retry": (metastore_model, "find_duplicate", lambda state, batch: None, "stored="),
}
"""What is wrong -> (module or class, attribute, wrong one, what a run must show)."""


@PLANTED.cases(BUGS)
def test_deliberate_bugs_are_found(bug: str, trial: Trial) -> None:
    owner, name, wrong, found = BUGS[bug]
    trial.plant(owner, name, wrong)
    for seed in trial.seeds():
        problems = _problems(seed)
        trial.saw(any(found in problem for problem in problems), instead=problems)


@PLANTED.cases(["an index that takes lost rows for none"])
def test_an_index_that_takes_lost_rows_for_none_is_found(bug: str, trial: Trial) -> None:
    """A resumed agent continues from the rows that the feed still has, and answers across the gap."""

    def keep_what_was_known(self: TailIndex, shard: int, head: int, heard: dict[int, int]) -> None:
        self.heads[shard] = head

    def append_across_the_gap(self: TailIndex, extent: Extent) -> None:
        tail = self._tails.get(extent.partition_key)
        if tail is None or tail.end in (None, extent.base_offset):
            append(self, extent)
            return
        tail.extents.append(extent)
        tail.high_watermark = extent.last_offset + 1

    append = TailIndex._append
    trial.plant(TailIndex, "_forget_shard", keep_what_was_known)
    trial.plant(TailIndex, "_append", append_across_the_gap)
    for seed in trial.seeds():
        problems = _problems(seed)
        trial.saw(any("consumer" in problem for problem in problems), instead=problems)
