"""The drills: what is lost, for how long, and how it comes back. Each says so as it continues.

Place: run.py runs one of them around a cluster with clients.
Invariant: when a script returns, what it took away is back. `look` is called at the time at which an operator would
look; agents are never touched manually, except those that the drill itself stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.drills.clients import DrillClients
from tests.torture.cluster import TortureCluster
from tests.torture.drills import Drill

FAILING = "headrace_dependency_failing"
OUTAGE_SECONDS = 20.0
LOOK_SECONDS = 12.0
"""After the loss: longer than an agent's lease."""
SHIFT_SECONDS = "600"
SHIFTED = ("tests.drills.shifted_clock", SHIFT_SECONDS)

Say = Callable[[str], None]


class Look(NamedTuple):
    """What an operator sees at one time."""

    not_ready: list[str]
    """One line for each agent that is not ready."""
    findings: list[str]
    """What the doctor finds that it did not find before."""
    metrics: dict[str, float]
    """Summed over the agents, and over labels."""

    def says(self, *words: str) -> bool:
        """Return whether one finding has all these words."""
        return any(all(word in line for word in words) for line in self.findings)


class Act(NamedTuple):
    """What a script works with."""

    cluster: TortureCluster
    say: Say
    look: Callable[[Sequence[str]], Awaitable[Look]]
    """The function that runs doctor."""
    expect: Callable[[str, bool], None]
    """Makes the drill fail, with these words, unless it is so."""
    clients: DrillClients
    directory: Path


async def agent_lost(act: Act) -> None:
    """One of three agents is killed"""
    await _agents_lost(act, ["agent-1"])


async def zone_lost(act: Act) -> None:
    """Two of three agents, all of one zone, are killed at once"""
    await _agents_lost(act, ["agent-0", "agent-1"])


async def _agents_lost(act: Act, names: Sequence[str]) -> None:
    await asyncio.gather(*(act.cluster.agents[name].kill() for name in names))
    act.say(f"SIGKILL: {', '.join(names)}")
    await _look_during(act)
    await asyncio.gather(*(act.cluster.agents[name].start() for name in names))
    act.say(f"started again: {', '.join(names)}")


async def postgres_lost(act: Act) -> None:
    """Postgres is killed and comes back on the same disk; there is no standby"""
    outage = asyncio.create_task(act.cluster.drills.outage(OUTAGE_SECONDS))
    act.say("SIGKILL: Postgres")
    await asyncio.sleep(LOOK_SECONDS)
    seen = await act.look(())
    act.expect("all agents stay ready, although their leases ran out", not seen.not_ready)
    act.expect("the doctor names Postgres", seen.says("postgres connect"))
    act.expect("a gauge of the dependency is set", seen.metrics.get(FAILING, 0) >= len(act.cluster.agents))
    await outage
    act.say("Postgres was started again")


async def postgres_promoted(act: Act) -> None:
    """Postgres is killed, and its synchronous standby is promoted"""
    act.say("a synchronous standby follows; then the primary is killed and the standby promoted")
    await act.cluster.drills.strike(Drill("promote_sync", 5.0))
    act.say("the standby is the primary, agents reach it at the same address")
    await act.look(())


async def bucket_unavailable(act: Act) -> None:
    """Nothing reaches the bucket"""
    (proxy,) = act.cluster.proxies["s3"]
    port, proxy.target = proxy.target, 0
    proxy.reset()
    act.say("connections to the bucket are refused")
    seen = await _look_during(act)
    act.expect("all agents stay ready", not seen.not_ready)
    act.expect("the doctor names the bucket", seen.says("bucket put"))
    proxy.target = port
    act.say("the bucket is back")


async def disk_full(act: Act) -> None:
    """The disk of Postgres is full"""
    outage = asyncio.create_task(act.cluster.drills.strike(Drill("disk_full", OUTAGE_SECONDS)))
    act.say("the last byte of Postgres' disk is taken")
    await asyncio.sleep(LOOK_SECONDS)
    seen = await act.look(())
    act.expect("all agents stay ready", not seen.not_ready)
    act.expect("the doctor names the full disk", seen.says("postgres disk") or seen.says("postgres connect"))
    act.expect("a gauge of the dependency is set", seen.metrics.get(FAILING, 0) >= 1)
    await outage
    act.say("there is room again; Postgres was started again if it had stopped")


async def wrong_clock(act: Act) -> None:
    """The clock of one agent's machine is ten minutes ahead"""
    agent = act.cluster.agents["agent-1"]
    await agent.stop()
    agent.module = SHIFTED
    await agent.start()
    act.say(f"agent-1 was started again with a clock {SHIFT_SECONDS} s ahead")
    await asyncio.sleep(LOOK_SECONDS)
    await act.look(SHIFTED)
    await agent.stop()
    agent.module = ("headrace.cli.main",)
    await agent.start()
    act.say("agent-1 was started again with the right clock")


async def puts_denied(act: Act) -> None:
    """The bucket answers, and refuses every PUT: its rights were changed"""
    (proxy,) = act.cluster.proxies["s3"]
    proxy.fault = "deny_puts"
    act.say("each PUT is answered 403 AccessDenied, all else works")
    seen = await _look_during(act)
    act.expect("all agents stay ready", not seen.not_ready)
    act.expect("the doctor names the PUT", seen.says("bucket put", "AccessDenied") or seen.says("bucket put", "403"))
    act.expect("a gauge of the dependency is set", seen.metrics.get(FAILING, 0) >= 1)
    proxy.fault = ""
    act.say("PUTs are allowed again")


async def agent_cut_off(act: Act) -> None:
    """One of three agents does not reach Postgres"""
    proxy = act.cluster.links[2]
    target, proxy.target = proxy.target, 0
    proxy.reset()
    act.say("connections of agent-2 to Postgres are refused")
    seen = await _look_during(act)
    act.expect("it alone is not ready", [line.split()[0] for line in seen.not_ready] == ["agent-2"])
    proxy.target = target
    act.say("agent-2 reaches Postgres again")


async def rolling_restart(act: Act) -> None:
    """Each agent is stopped and started again, one after another"""
    for name, agent in act.cluster.agents.items():
        await agent.stop()
        await agent.start()
        act.say(f"restarted: {name}")
    act.expect("librdkafka gave up no record", not act.clients.given_up)


async def _look_during(act: Act) -> Look:
    await asyncio.sleep(LOOK_SECONDS)
    seen = await act.look(())
    await asyncio.sleep(OUTAGE_SECONDS - LOOK_SECONDS)
    return seen


DRILLS = {
    script.__name__: script
    for script in (
        *(agent_lost, zone_lost, postgres_lost, postgres_promoted, bucket_unavailable, disk_full, wrong_clock),
        *(puts_denied, agent_cut_off, rolling_restart),
    )
}
