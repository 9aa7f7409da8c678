"""Consumer lag is shown by the active controller, and by no other process."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.cluster_metrics import ConsumerLags
from headrace.agent.cluster.controller.controller import controller_steps
from headrace.agent.cluster.controller.rounds import ControllerSteps
from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.reports import ConsumerLag
from headrace.metastore.keys import partition_key
from headrace.storage.errors import UnavailableError
from headrace.storage.supervision import Supervisor
from load.contexts import a_context
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock

INTERVAL_SECONDS = 30.0


class Lags:
    """One controller's export, over answers that a test sets."""

    def __init__(self, clock: ManualClock, pairs_max: int = 10) -> None:
        self.clock = clock
        self.cluster = FakeClusterApi(clock)
        self.cluster.add_topic("orders", 2)
        self.follower = MetadataFollower(self.cluster)
        self.registry = CollectorRegistry()
        self.answer: list[ConsumerLag] | UnavailableError = []
        self.limits: list[int] = []
        api: Any = self
        lags = ConsumerLags(api, pairs_max, self.registry)
        table = controller_steps(a_context(api, clock, registry=self.registry), self.follower, api, lags=lags)
        self.steps = ControllerSteps(table[-1:], self.follower, clock, Supervisor(clock))

    async def consumer_lags(self, limit: int) -> list[ConsumerLag]:
        self.limits.append(limit)
        if isinstance(self.answer, UnavailableError):
            raise self.answer
        return self.answer

    async def round(self, *, active: bool, later: float = INTERVAL_SECONDS) -> dict[tuple[str, str, str], float]:
        """Return what /metrics shows after a round of the controller."""
        if active:
            await self.steps.run(1)
        else:
            self.steps.stand_by()
        await self.clock.advance(later)
        (family,) = (found for found in self.registry.collect() if found.name == "headrace_consumer_lag_records")
        return {(s.labels["group"], s.labels["topic"], s.labels["partition"]): s.value for s in family.samples}

    def lag(self, partition: int, records: int, pairs: int = 2) -> ConsumerLag:
        """Return the lag of group g in topic orders."""
        (number,) = self.follower.image.topics_by_number
        return ConsumerLag("g", partition_key(number, partition), records, pairs, records * 1_000)


@pytest.fixture
async def world(fake_clock: ManualClock) -> Lags:
    world = Lags(fake_clock)
    await world.follower.catch_up()
    return world


async def test_only_the_active_controller_asks_and_shows(world: Lags) -> None:
    world.answer = [world.lag(1, 70, pairs=5), world.lag(0, 3, pairs=5)]
    assert await world.round(active=False) == {}
    assert world.limits == []
    assert await world.round(active=True) == {("g", "orders", "1"): 70, ("g", "orders", "0"): 3}
    labels = {"group": "g", "topic": "orders", "partition": "1"}
    assert world.registry.get_sample_value("headrace_consumer_lag_seconds", labels) == 70
    assert world.registry.get_sample_value("headrace_consumer_lag_omitted") == 3
    assert await world.round(active=False, later=0) == {}, "a standby shows no old value next to its successor's"
    assert world.registry.get_sample_value("headrace_consumer_lag_seconds", labels) is None


async def test_it_asks_once_per_interval_with_its_limit(world: Lags) -> None:
    for _ in range(6):
        await world.round(active=True, later=INTERVAL_SECONDS / 3)
    assert world.limits == [10, 10]


async def test_values_that_are_not_answered_for_are_not_shown(world: Lags, caplog: pytest.LogCaptureFixture) -> None:
    world.answer = [world.lag(0, 3)]
    await world.round(active=True)
    world.answer = UnavailableError("no connection")
    with caplog.at_level(logging.WARNING):
        assert await world.round(active=True) == {}
    assert "cannot read the lag of consumer groups" in caplog.text
    world.answer = [world.lag(1, 8), ConsumerLag("g", partition_key(77, 0), 9, 2)]
    assert await world.round(active=True) == {("g", "orders", "1"): 8}, "a deleted topic has no name"


async def test_zero_switches_it_off(fake_clock: ManualClock) -> None:
    world = Lags(fake_clock, pairs_max=0)
    assert await world.round(active=True) == {}
    assert world.limits == []
    await world.steps.close()
