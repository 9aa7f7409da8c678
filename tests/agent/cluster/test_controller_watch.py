"""Agents notice that there is no active controller, and say so once."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.heartbeats import ControllerWatch
from headrace.metastore.api.controller import ControllerLease
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock

PATIENCE_SECONDS = 18.0


def test_one_warning_per_absence(fake_clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    registry = CollectorRegistry()
    watch = ControllerWatch(fake_clock, PATIENCE_SECONDS, registry)

    def shown() -> float | None:
        return registry.get_sample_value("headrace_active_controller_id")

    assert shown() == -1
    for _ in range(2):
        watch.observe(-1)
        fake_clock.jump(PATIENCE_SECONDS - 1)
        watch.observe(-1)
        assert caplog.messages == []
        fake_clock.jump(1)
        watch.observe(-1)
        watch.observe(-1)
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert "no active controller" in caplog.messages[0]
        assert shown() == -1
        watch.observe(4)
        watch.observe(4)
        assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]
        assert shown() == 4
        caplog.clear()


def test_a_take_over_is_not_worth_a_word(fake_clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = ControllerWatch(fake_clock, PATIENCE_SECONDS, CollectorRegistry())
    for controller_id in (1, -1, 2, -1, -1, 3):
        watch.observe(controller_id)
        fake_clock.jump(PATIENCE_SECONDS * 0.9)
    assert caplog.messages == []


@pytest.mark.requirement("C15")
async def test_heartbeats_tell_the_agent(fake_clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Without any process in the role agents serve on, and say what is missing."""
    api = FakeClusterApi(fake_clock)
    cluster: Cluster = an_agent(api)
    await fake_clock.run(cluster.start())
    await fake_clock.advance(PATIENCE_SECONDS + 3)
    assert [m for m in caplog.messages if "no active controller" in m]
    assert cluster.membership.holds_lease()
    caplog.clear()
    caplog.set_level(logging.INFO)
    api.controller = ControllerLease(7, 1, is_own=False)
    await fake_clock.advance(4)
    assert [m for m in caplog.messages if "active controller found again: controller=7" in m]
    await cluster.stop()
