"""Leases of different lengths in files and in the cluster: no process ends a lease that its holder trusts.

The metastore is the fake that the cluster contract compares with Postgres (tests/contracts/test_cluster_contract.py).
Time is the test's; an answer of the metastore may be lost on the way back.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.agent.cluster.controller.rounds import ControllerTimes
from headrace.metastore.api.agents import HeartbeatAnswer
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.storage.errors import OutcomeUnknownError
from tests.agent.cluster.candidate import Candidate
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import a_membership
from tests.manual_clock import ManualClock
from tests.planted import PlantedBugs, Trial

SESSION, LEASE = "broker.session.timeout.ms", "controller.lease.ms"
STEPS = 120
SEEDS = range(12)


class World:
    """Two agents and two controllers. Their files have different lengths."""

    def __init__(self, seed: int, api: Callable[[ManualClock], FakeClusterApi] = FakeClusterApi) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.api = api(self.clock)
        self.agents = [
            a_membership(self.api, node_id, session_ms=timeout_ms, rng=self.rng)
            for node_id, timeout_ms in ((1, 18_000), (2, 6_000))
        ]
        self.controllers = [
            Candidate(self.api, 101, ControllerTimes(6_000, 6_000, 3_600_000, 1_000_000)),
            Candidate(self.api, 102, ControllerTimes(2_000, 30_000, 3_600_000, 1_000_000)),
        ]

    async def start(self) -> None:
        starting = asyncio.gather(*(agent.start() for agent in self.agents))
        while not starting.done():
            await self.clock.advance(0.5)
        await starting

    async def stop(self) -> None:
        for candidate in self.controllers:
            await candidate.die()
        for agent in self.agents:
            if agent._heartbeats is not None:
                agent._heartbeats.cancel()

    async def step(self) -> None:
        """One thing happens, then some time passes. The invariant is checked every 100 ms."""
        match self.rng.randrange(6):
            case 0:
                self._set(SESSION, self.rng.choice(("900", "6000", "18000", "40000")))
            case 1:
                self._set(LEASE, self.rng.choice(("300", "2000", "9000")))
            case 2:
                operation = self.rng.choice(("heartbeat", "hold_controller_lease"))
                self.api.fail_after[operation].extend([OutcomeUnknownError("lost")] * self.rng.randrange(1, 6))
            case 3:
                operation = self.rng.choice(("heartbeat", "hold_controller_lease"))
                self.api.fail_before[operation].extend([OutcomeUnknownError("lost")] * self.rng.randrange(1, 12))
        for _ in range(self.rng.randrange(1, 60)):
            await self.clock.advance(0.1)
            self.check()

    def _set(self, name: str, value: str) -> None:
        self.api.append(
            ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=name, value=value),
        )

    def check(self) -> None:
        for agent in self.agents:
            known = self.api.agents.get(agent.node_id)
            if agent.holds_lease():
                assert known is not None, f"node {agent.node_id} holds a lease that the metastore does not know"
                assert not known.fenced, f"node {agent.node_id} was fenced while it held its lease"
        assert sum(candidate.controller.is_active for candidate in self.controllers) <= 1, "two active controllers"


async def run(seed: int, api: Callable[[ManualClock], FakeClusterApi] = FakeClusterApi) -> None:
    world = World(seed, api)
    await world.start()
    try:
        for _ in range(STEPS):
            await world.step()
    finally:
        await world.stop()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 2 else pytest.mark.slow) for seed in SEEDS])
async def test_what_a_holder_trusts_is_not_ended_by_others(seed: int) -> None:
    await run(seed)


class OwnLengthTrusted(FakeClusterApi):
    """Planted bug: agents trust the length that they asked for, not the one that was granted."""

    async def heartbeat(self, *args: Any, session_timeout_ms: int, **rest: Any) -> HeartbeatAnswer:
        answer = await super().heartbeat(*args, session_timeout_ms=0, **rest)
        return replace(answer, session_timeout_ms=session_timeout_ms)


class EndsMoveBack(FakeClusterApi):
    """Planted bug: a shorter length replaces the stored end at once."""

    async def heartbeat(self, node_id: int, *args: Any, **rest: Any) -> HeartbeatAnswer:
        if node_id in self.agents:
            self.agents[node_id].held_until = 0.0
        return await super().heartbeat(node_id, *args, **rest)


class FencedByControllersLength(FakeClusterApi):
    """Planted bug: a controller fences by its own session timeout."""

    async def heartbeat(self, node_id: int, *args: Any, **rest: Any) -> HeartbeatAnswer:
        answer = await super().heartbeat(node_id, *args, **rest)
        self._contacts()[node_id] = self.clock.monotonic()
        return answer

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        for node_id, contact in self._contacts().items():
            if node_id in self.agents:
                self.agents[node_id].held_until = contact + session_timeout_ms / 1000
        return await super().fence_silent_agents(controller_epoch, session_timeout_ms=session_timeout_ms)

    def _contacts(self) -> dict[int, float]:
        contacts: dict[int, float] = self.__dict__.setdefault("contacts", {})
        return contacts


class ControllersEndMovesBack(FakeClusterApi):
    """Planted bug: the controller's lease is stored with the newest length, although an answer may be lost."""

    async def hold_controller_lease(self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int) -> Any:
        if incarnation_id == self.controller_incarnation:
            self.controller_until = min(self.controller_until, self.clock.monotonic())
        return await super().hold_controller_lease(controller_id, incarnation_id, 0)


BUGS = [OwnLengthTrusted, EndsMoveBack, FencedByControllersLength, ControllersEndMovesBack]
PLANTED = PlantedBugs("granted leases", most=500)


@PLANTED.cases(BUGS, lambda bug: bug.__name__)
async def test_a_planted_bug_is_caught(bug: type[FakeClusterApi], trial: Trial) -> None:
    for seed in trial.seeds():
        with trial.shown_by(AssertionError):
            await run(seed, bug)
