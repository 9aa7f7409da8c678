"""The drills: what is lost, for how long, and how it comes back. Each says so as it continues.

Place: run.py runs one of them around a cluster with clients.
Invariant: when a script returns, what it took away is back. `look` is called at the time at which an operator would
look; agents are never touched manually, except those that the drill itself stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from load.torture.cluster import TortureCluster
from load.torture.drills import Drill

OUTAGE_SECONDS = 20.0
LOOK_SECONDS = 12.0
"""After the loss: longer than an agent's lease."""
SHIFT_SECONDS = "600"
SHIFTED = ("load.drills.shifted_clock", SHIFT_SECONDS)

Say = Callable[[str], None]


class Act(NamedTuple):
    """What a script works with."""

    cluster: TortureCluster
    say: Say
    look: Callable[[Sequence[str]], Awaitable[None]]
    """The function that runs doctor."""


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
    await act.look(())
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
    await _look_during(act)
    proxy.target = port
    act.say("the bucket is back")


async def disk_full(act: Act) -> None:
    """The disk of Postgres is full"""
    outage = asyncio.create_task(act.cluster.drills.strike(Drill("disk_full", OUTAGE_SECONDS)))
    act.say("the last byte of Postgres' disk is taken")
    await asyncio.sleep(LOOK_SECONDS)
    await act.look(())
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


async def _look_during(act: Act) -> None:
    await asyncio.sleep(LOOK_SECONDS)
    await act.look(())
    await asyncio.sleep(OUTAGE_SECONDS - LOOK_SECONDS)


DRILLS = {
    script.__name__: script
    for script in (agent_lost, zone_lost, postgres_lost, postgres_promoted, bucket_unavailable, disk_full, wrong_clock)
}
