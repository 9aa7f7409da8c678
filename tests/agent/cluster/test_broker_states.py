"""Broker states: Kafka's names and numbers, each shown by the metric while it holds; RUNNING only after RECOVERY."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.membership import BrokerState
from headrace.metastore.log.kip631_records import FenceBrokerRecord
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import a_membership
from tests.manual_clock import ManualClock
from tests.seeds import examples

KAFKAS = {
    "NOT_RUNNING": 0,
    "STARTING": 1,
    "RECOVERY": 2,
    "RUNNING": 3,
    "PENDING_CONTROLLED_SHUTDOWN": 6,
    "SHUTTING_DOWN": 7,
}


class WatchedAgent:
    """`during`: what the metric showed while each operation of the metastore ran. `states`: every change, in order."""

    def __init__(self, clock: ManualClock) -> None:
        self.api = FakeClusterApi(clock)
        self.registry = CollectorRegistry()
        self.states: list[BrokerState] = []
        self.during: dict[str, set[float]] = {}
        self.membership = a_membership(self.api, registry=self.registry)
        become = self.membership._become
        self.membership._become = lambda state: (become(state), self.states.append(state))[0]  # type: ignore
        for name in ("register_agent", "heartbeat", "unregister_agent"):
            self._watch(name)

    @property
    def shown(self) -> float:
        value = self.registry.get_sample_value("headrace_broker_state")
        assert value is not None
        return value

    def _watch(self, name: str) -> None:
        call = getattr(self.api, name)

        async def watched(*arguments: Any, **named: Any) -> Any:
            self.during.setdefault(name, set()).add(self.shown)
            return await call(*arguments, **named)

        setattr(self.api, name, watched)


@pytest.mark.requirement("C7")
def test_the_states_have_kafkas_names_and_numbers() -> None:
    assert {state.name: state.value for state in BrokerState} == KAFKAS


@pytest.mark.requirement("C7")
async def test_the_metric_shows_each_state_while_it_holds(fake_clock: ManualClock) -> None:
    """0 before the start and after the stop, 1 while it registers, 2 until it is unfenced, 7 while it leaves."""
    agent = WatchedAgent(fake_clock)
    assert agent.shown == 0
    await fake_clock.run(agent.membership.start())
    assert agent.during.pop("register_agent") == {1}
    assert agent.during.pop("heartbeat") == {2}
    assert agent.shown == 3
    agent.membership.begin_shutdown()
    await fake_clock.advance(1)
    assert agent.during.pop("heartbeat") == {6} == {agent.shown}
    await agent.membership.stop()
    assert agent.during == {"unregister_agent": {7}}
    assert agent.shown == 0


FAULTS = st.lists(st.tuples(st.sampled_from(("fence", "away", "unknown", "pass")), st.floats(0.1, 30)), max_size=8)


@pytest.mark.requirement("C7")
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FAULTS)
async def test_an_agent_always_runs_after_recovery(faults: list[tuple[str, float]]) -> None:
    """However often it is fenced, and whichever calls fail: STARTING, RECOVERY, RUNNING, each time in this order."""
    logging.disable(logging.WARNING)
    clock = ManualClock()
    agent = WatchedAgent(clock)
    await clock.run(agent.membership.start())
    for fault, seconds in faults:
        if fault == "fence":
            epoch = agent.membership.broker_epoch
            agent.api.agents.pop(1, None)
            agent.api.append(FenceBrokerRecord(broker_id=1, broker_epoch=epoch))
        elif fault != "pass":
            error = UnavailableError("down") if fault == "away" else OutcomeUnknownError("lost")
            for name in ("register_agent", "heartbeat", "read_metadata"):
                agent.api.fail_before[name] = [error]
        await clock.advance(seconds)
    await clock.advance(60)
    assert agent.shown == 3
    states = agent.states
    came_from = {before for before, now in itertools.pairwise(states) if now is BrokerState.RUNNING}
    assert came_from == {BrokerState.RECOVERY}
    assert {now for before, now in itertools.pairwise(states) if before is BrokerState.STARTING} <= {
        BrokerState.STARTING,
        BrokerState.RECOVERY,
    }
    await agent.membership.stop()
    assert states[-2:] == [BrokerState.SHUTTING_DOWN, BrokerState.NOT_RUNNING]
    logging.disable(logging.NOTSET)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
