"""Three real agents lose one under the load of two client libraries: killed, stopped past its lease, drained.

Fault model: SIGKILL, SIGSTOP for longer than the session and SIGCONT, SIGTERM; each hits the agent that
is the active controller, too. The times that a failover took are printed (`-s`), against the lease, and
never asserted. How long a partition is silent depends on the client's own patience with a stopped agent.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.agent_process import AgentUnderTest
from tests.faults.steady_load import PARTITIONS, Load

Three = tuple[AgentUnderTest, AgentUnderTest, AgentUnderTest]
SESSION_SECONDS = 3.0
LEASE_SECONDS = 1.0
BEFORE_SECONDS = 2.0
AFTER_SECONDS = 3.0
SECONDS_MAX = 30.0
pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(180)]


@pytest.fixture
def three_agents(agent_settings: dict[str, object]) -> Iterator[Three]:
    settings = agent_settings | {
        "broker.session.timeout.ms": int(SESSION_SECONDS * 1000),
        "controller.lease.ms": int(LEASE_SECONDS * 1000),
    }
    with AgentUnderTest(settings) as first, AgentUnderTest(settings) as second, AgentUnderTest(settings) as third:
        yield first, second, third


def _metric(agent: AgentUnderTest, name: str) -> float:
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _active(agents: list[AgentUnderTest]) -> list[AgentUnderTest]:
    return [agent for agent in agents if _metric(agent, "headrace_controller_active")]


def _shown(agent: AgentUnderTest) -> set[int]:
    """The agents that clients of this one are told of."""
    return set(AdminClient({"bootstrap.servers": agent.kafka}).list_topics(timeout=20).brokers)


async def _until(what: Callable[[], bool]) -> float:
    """Seconds until it holds; fails when that takes unreasonably long."""
    began = time.monotonic()
    while not await asyncio.to_thread(what):
        assert time.monotonic() - began < SECONDS_MAX
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def _lose_one(agents: Three, topic: str, lose: Callable[[AgentUnderTest], object]) -> Load:
    """Run the load while the active controller's agent is lost; the victim is agents' active one."""
    admin = AdminClient({"bootstrap.servers": agents[0].kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(20)
    (victim,) = _active(list(agents))
    survivors = [agent for agent in agents if agent is not victim]
    async with Load(",".join(agent.kafka for agent in agents), topic) as load:
        await asyncio.sleep(BEFORE_SECONDS)
        lost = asyncio.create_task(asyncio.to_thread(lose, victim))
        gone, taken_over = await asyncio.gather(
            _until(lambda: all(victim.node_id not in _shown(agent) for agent in survivors)),
            _until(lambda: len(_active(survivors)) == 1),
        )
        await asyncio.sleep(AFTER_SECONDS)
        await lost
    silences = " ".join(f"{seen.name}={seen.longest_silence():.2f}s" for seen in load.producers)
    print(
        f"\n{topic}: gone from metadata after {gone:.2f}s (session {SESSION_SECONDS:.0f}s), "
        f"controller taken over after {taken_over:.2f}s (lease {LEASE_SECONDS:.0f}s), "
        f"longest silence of a partition: {silences}"
    )
    return load


@pytest.mark.requirement("W1", "C5")
async def test_a_killed_agent_is_replaced_and_nobody_notices_but_by_waiting(three_agents: Three) -> None:
    load = await _lose_one(three_agents, "killed", lambda victim: victim.kill())
    load.assert_nothing_went_wrong()


@pytest.mark.requirement("W7", "C15")
async def test_an_agent_stopped_past_its_lease_resumes_without_harm(three_agents: Three) -> None:
    def pause_past_the_lease(victim: AgentUnderTest) -> None:
        victim.pause()
        time.sleep(2 * SESSION_SECONDS)  # a real process: only real time stops it
        victim.resume()

    load = await _lose_one(three_agents, "stopped", pause_past_the_lease)
    load.assert_nothing_went_wrong()
    back = await _until(lambda: all(len(_shown(agent)) == 3 for agent in three_agents))
    assert len(_active(list(three_agents))) == 1, "one owner of the controller's role"
    print(f"stopped: back in metadata {back:.2f}s after the load ended")


@pytest.mark.requirement("C6")
async def test_a_drained_agent_goes_without_an_error(three_agents: Three) -> None:
    statuses: list[int] = []
    load = await _lose_one(three_agents, "drained", lambda victim: statuses.append(victim.stop()))
    load.assert_nothing_went_wrong()
    assert statuses == [0]
