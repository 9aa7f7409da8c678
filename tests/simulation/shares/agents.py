"""Agents of a share schedule as processes: the real groups, owner, sessions and handlers, on simulated surroundings.

Fault model: a process is killed between any two steps and started again; it is paused for longer than its lease, and
continues as if nothing had happened; what it reads of a log may be less than it asked for, or fail, or come after the
lock of the records has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from headrace.agent.apis.groups import SHARE_GROUP_ROWS
from headrace.agent.fetch.handler import ReplyClaim
from headrace.agent.fetch.share.deliver import AcquiredRange, ShareDelivery, ShareReader
from headrace.agent.fetch.share.handlers import ShareHandlers
from headrace.agent.fetch.share.sessions import ShareSessions
from headrace.agent.groups.share.share_partition import Acquired
from headrace.agent.peers.forwarding.links import Links
from headrace.agent.peers.share_turns import Returned
from headrace.agent.serve.groups import AskShareOwner, compose_groups
from headrace.config.settings import Settings
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.request import ClientConnection, Request, RequestHandler, Response
from load.contexts import a_context
from tests.nouns import nouns
from tests.simulation.clocks import CLOCK_RATES, SimulatedClock
from tests.simulation.loop import OWNER
from tests.simulation.shares.cluster import Logs, SimulatedLinks, StoreLine, View

if TYPE_CHECKING:
    from tests.simulation.shares.world import ShareWorld

ATTEMPTS = 3
BATCH_OFFSETS = 4
"""Batches begin at multiples of it."""
SETTINGS = Settings(
    group_share_session_timeout_ms=3_000,
    group_share_min_session_timeout_ms=1_000,
    group_share_heartbeat_interval_ms=500,
    group_share_min_heartbeat_interval_ms=100,
    group_share_record_lock_duration_ms=1_000,
    group_share_min_record_lock_duration_ms=100,
    group_share_delivery_count_limit=ATTEMPTS,
    group_share_partition_max_record_locks=100,
)


class _Reader:
    """Takes the place of ShareReader, which has its own tests: sometimes it cannot read, or not all."""

    def __init__(self, world: ShareWorld, owner: int) -> None:
        self._world, self._slow = world, random.Random(f"{world.seed} reads {owner}")

    async def read(
        self,
        acquired: Mapping[int, Sequence[AcquiredRange]],
        max_bytes: int,
        memory: ReplyClaim,
        *,
        committed: bool,
        needed_ends: Mapping[int, int],
    ) -> dict[int, ShareDelivery]:
        await self._world.pause((0.0005, 0.02))
        if self._slow.random() < self._world.trouble(0.1):
            await asyncio.sleep(self._slow.uniform(0.05, 1.9))
        return {key: self._part(key, ranges, needed_ends[key]) for key, ranges in acquired.items()}

    def _part(self, key: int, ranges: Sequence[AcquiredRange], needed_end: int) -> ShareDelivery:
        rng = self._world.rng
        whole = [Returned(key, first, last) for first, last, _ in ranges]
        if rng.random() < self._world.trouble(0.05):
            return ShareDelivery(READ_FAILED, returned=whole)
        cut = rng.randrange(len(ranges) + 1) if rng.random() < self._world.trouble(0.2) else len(ranges)
        end = -(-needed_end // BATCH_OFFSETS) * BATCH_OFFSETS if needed_end else 1 << 62
        part = ShareDelivery(records=[b"records"], returned=whole[cut:])
        for first, last, tries in ranges[:cut]:
            if last >= end:
                part.returned.append(Returned(key, max(first, end), last))
            for is_hole, some in groupby(range(first, min(last + 1, end)), partial(self._world.is_hole, key)):
                offsets = list(some)
                if is_hole:  # known to the end of its batch, which may be beyond what was acquired
                    beyond = offsets[-1]
                    if self._world.is_removed(key, beyond):
                        beyond = min(-(-(beyond + 1) // BATCH_OFFSETS) * BATCH_OFFSETS, self._world.logs[key].end) - 1
                    part.returned.append(Returned(key, offsets[0], max(offsets[-1], beyond), True))
                else:
                    part.acquired.append((offsets[0], offsets[-1], tries))
        return part


class Process:
    """One life of an agent."""

    def __init__(self, world: ShareWorld, agent: SimulatedAgent, owner: int) -> None:
        rng = random.Random(world.rng.getrandbits(64))
        self.agent, self.owner = agent, owner
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, owner)
        self.clock = SimulatedClock(world.loop, rate=rng.uniform(*CLOCK_RATES), start=rng.uniform(0, 1e4))
        self.view = View(world, self, agent.node_id)
        self.logs = Logs(world)
        self.served: list[ClientConnection] = []
        """Clients of other agents, for their turns here."""
        self.requests = compose_groups(
            a_context(nouns(StoreLine(world)), self.clock, settings=SETTINGS, rng=rng),
            self.view,
            logs=self.logs,
        )
        owner_of_shares = self.requests.share_owner
        acquire = owner_of_shares._acquire

        async def seen(*args: Any) -> dict[int, list[Acquired]]:
            got = await acquire(*args)
            world.acquired(agent.node_id, args[1].member_id, args[0].held.epoch, got)
            return got

        async def fetch(request: Request) -> Response:
            response = await shares.fetch(request)
            for topic in cast(Any, response.entity).responses:
                for part in topic.partitions:
                    world.sent(cast(Any, request.entity).member_id, part.partition_index, part.acquired_records)
            return response

        owner_of_shares._acquire = seen  # type: ignore[method-assign, assignment]
        links = cast(Links, SimulatedLinks(world, self))
        shares = ShareHandlers(
            self.view,
            ShareSessions(lambda: 100),
            cast(ShareReader, _Reader(world, owner)),
            AskShareOwner(self.view, links, owner_of_shares),
            self.clock,
            None,
        )
        self.handlers: dict[int, RequestHandler] = {
            ApiKey.SHARE_GROUP_HEARTBEAT: SHARE_GROUP_ROWS[ApiKey.SHARE_GROUP_HEARTBEAT].handler(self.requests),
            ApiKey.SHARE_FETCH: fetch,
            ApiKey.SHARE_ACKNOWLEDGE: shares.acknowledge,
        }


class SimulatedAgent:
    """A node id, and the process that runs under it now; None while it is down."""

    def __init__(self, world: ShareWorld, node_id: int) -> None:
        self._world, self.node_id = world, node_id
        self.process: Process | None = None
        self._lives = 0
        self.clients: list[ClientConnection] = []

    def boot(self) -> None:
        """Start a new life."""
        self._lives += 1
        process = self.process = Process(self._world, self, self.node_id * 1000 + self._lives)
        self._world.begin(process, process.view.keep)

    def kill(self) -> None:
        """End it as kill -9 does; it is started again later."""
        victim, self.process = self.process, None
        if victim is None:
            return
        self._world.note("kill", self.node_id)
        self._world.loop.kill(victim.owner)
        clients, self.clients = self.clients, []
        for client in clients:
            client.closed = True
            if client.when_closed is not None:  # what is known of it elsewhere ends with its link
                for other in self._world.agents:
                    if other.process is not None:
                        self._world.end_forwarded(other.process, client.connection_id)
        self._world.later(self._world.rng.uniform(0.05, 0.8), self.boot)

    def freeze(self) -> None:
        """Pause it, maybe for longer than its lease."""
        if self.process is None:
            return
        frozen = self.process
        self._world.note("freeze", self.node_id)
        self._world.loop.freeze(frozen.owner)
        self._world.later(self._world.rng.uniform(0.1, 2.0), self._world.loop.thaw, frozen.owner)
