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

from tests.agent_process import AgentUnderTest, until_told
from tests.faults.steady_load import PARTITIONS, Load

Three = tuple[AgentUnderTest, AgentUnderTest, AgentUnderTest]
SESSION_SECONDS = 3.0
LEASE_SECONDS = 1.0
RECORDS_BEFORE, RECORDS_AFTER = 60, 80
"""Numbers of records of each producer; it sends about seventy a second."""
SECONDS_MAX = 300


@pytest.fixture
def three_agents(agent_settings: dict[str, object]) -> Iterator[Three]:
    settings = agent_settings | {
        "broker.session.timeout.ms": int(SESSION_SECONDS * 1000),
        "controller.lease.ms": int(LEASE_SECONDS * 1000),
    }
    with AgentUnderTest(settings) as first, AgentUnderTest(settings) as second, AgentUnderTest(settings) as third:
        yield first, second, third


def _metric(agent: AgentUnderTest, name: str) -> float:
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=SECONDS_MAX) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _active(agents: list[AgentUnderTest]) -> list[AgentUnderTest]:
    return [agent for agent in agents if _metric(agent, "headrace_controller_active")]


async def _the_active(agents: Three) -> AgentUnderTest:
    """Its lease is short: while the machine stalls, no process may have it."""
    until = time.monotonic() + SECONDS_MAX
    while len(active := await asyncio.to_thread(_active, list(agents))) != 1:
        assert time.monotonic() < until, active
        await asyncio.sleep(0.05)
    return active[0]


def _shown(agent: AgentUnderTest) -> set[int]:
    """The agents that this one lists for clients."""
    return set(AdminClient({"bootstrap.servers": agent.kafka}).list_topics(timeout=SECONDS_MAX).brokers)


async def _until(what: Callable[[], bool]) -> float:
    """Seconds until it holds; fails when that takes unreasonably long."""
    began = time.monotonic()
    while not await asyncio.to_thread(what):
        assert time.monotonic() - began < SECONDS_MAX
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def _lose_one(
    agents: Three,
    topic: str,
    lose: Callable[[AgentUnderTest], object],
    give_back: Callable[[AgentUnderTest], object] = lambda victim: None,
) -> Load:
    """Run the load while the active controller's agent is lost, and given back once all have noticed."""
    admin = AdminClient({"bootstrap.servers": agents[0].kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(SECONDS_MAX)
    until_told(agents, topic)
    async with Load(",".join(agent.kafka for agent in agents), topic) as load:
        await load.until_acknowledged(RECORDS_BEFORE)
        victim = await _the_active(agents)
        survivors = [agent for agent in agents if agent is not victim]
        gone, taken_over, _ = await asyncio.gather(
            _until(lambda: all(victim.node_id not in _shown(agent) for agent in survivors)),
            _until(lambda: len(_active(survivors)) == 1),
            asyncio.to_thread(lose, victim),
        )
        give_back(victim)
        await load.until_acknowledged(RECORDS_AFTER)
    silences = " ".join(f"{seen.name}={seen.longest_silence():.2f}s" for seen in load.producers)
    print(
        f"\n{topic}: gone from metadata after {gone:.2f}s (session {SESSION_SECONDS:.0f}s), "
        f"controller taken over after {taken_over:.2f}s (lease {LEASE_SECONDS:.0f}s), "
        f"longest silence of a partition: {silences}"
    )
    return load


@pytest.mark.slow
@pytest.mark.requirement("W1", "C5")
async def test_a_killed_agent_is_replaced_and_clients_only_wait(three_agents: Three) -> None:
    load = await _lose_one(three_agents, "killed", lambda victim: victim.kill())
    load.assert_nothing_went_wrong()


@pytest.mark.slow
@pytest.mark.requirement("W7", "C15")
async def test_an_agent_stopped_past_its_lease_resumes_without_harm(three_agents: Three) -> None:
    def pause_past_the_lease(victim: AgentUnderTest) -> None:
        victim.pause()
        time.sleep(2 * SESSION_SECONDS)  # a real process: only real time stops it

    load = await _lose_one(three_agents, "stopped", pause_past_the_lease, AgentUnderTest.resume)
    load.assert_nothing_went_wrong()
    back = await _until(lambda: all(len(_shown(agent)) == 3 for agent in three_agents))
    await _the_active(three_agents)
    print(f"stopped: back in metadata {back:.2f}s after the load ended")


@pytest.mark.slow
@pytest.mark.requirement("C6")
async def test_a_drained_agent_goes_without_an_error(three_agents: Three) -> None:
    statuses: list[int] = []
    load = await _lose_one(three_agents, "drained", lambda victim: statuses.append(victim.stop()))
    load.assert_nothing_went_wrong()
    assert statuses == [0]
