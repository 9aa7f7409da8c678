"""The address of Postgres moves to a promoted server, and the old primary stays up: who follows, and how calmly?

Place: one of the drills of tests/torture/drills.py. Each agent has a proxy in front of Postgres: the address that it
knows. No connection is reset, but those of one agent: until a process connects to the new server, nothing can say that
there is one.
Invariant: one agent's address leads to the old server for WRONG_SECONDS more, as a name that is cached. When all
addresses have moved, no agent stays connected to the old server, and no agent made more new connections than its pools
have, once for each FIRST_WAIT_SECONDS.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.metastore.life.keeper import FIRST_WAIT_SECONDS
from tests.torture.proxy import FaultProxy

WRONG_SECONDS = 25.0
PATIENCE_SECONDS = 180.0
"""Longest wait in seconds until the last agent has left the old server: its longest wait is a minute and a half."""
LOOK_SECONDS = 0.2


@dataclass
class _Counted:
    """What one agent did: `open` is the most connections that it had at once."""

    link: FaultProxy
    accepted: int
    starts: int
    open: int = 0


async def move_address(
    old: int,
    new: int,
    links: Sequence[FaultProxy],
    starts: Callable[[], Sequence[int]],
    rng: random.Random,
    *,
    wrong_seconds: float = WRONG_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> list[str]:
    """Move it from port to port; what was wrong. `starts`: how often each agent was started so far."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    counted = [_Counted(link, link.accepted, times) for link, times in zip(links, starts(), strict=True)]
    first, late = rng.sample(links, 2)
    for link in links:
        if link is not late:
            link.target = new
    first.reset()
    while loop.time() < began + wrong_seconds:
        await _look(counted)
    late.target = new
    until = loop.time() + patience_seconds
    while any(link.open_to(old) for link in links) and loop.time() < until:
        await _look(counted)
    stay = sum(link.open_to(old) for link in links)
    offences = [f"agents stay with the old primary after its address has moved: connections={stay}"] if stay else []
    for number, (one, times) in enumerate(zip(counted, starts(), strict=True)):
        made = one.link.accepted - one.accepted
        most = one.open * (2 + int((loop.time() - began) / FIRST_WAIT_SECONDS) + times - one.starts)
        if made > most:
            offences.append(f"too many new connections to Postgres: agent={number} made={made} most={most}")
    return offences


async def _look(counted: Sequence[_Counted]) -> None:
    for one in counted:
        one.open = max(one.open, one.link.open)
    await asyncio.sleep(LOOK_SECONDS)
