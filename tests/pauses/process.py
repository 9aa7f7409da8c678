"""One agent without sockets: membership, controller, write and read path, groups and housekeeping, as
agent/serve/paths.py.

Fault model: none; the loop stops it (tests/pauses/loop.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from headrace.agent.apis.all_apis import COORDINATOR_ROWS
from headrace.agent.apis.api_row import routes_of
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.controller.agent_links import AgentLink
from headrace.agent.cluster.controller.controller import Controller, controller_steps
from headrace.agent.cluster.controller.rounds import ControllerTimes, HeldLease
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.heartbeats import HeartbeatHealth
from headrace.agent.cluster.membership import Identity, Membership
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.zone import ZoneTraffic
from headrace.agent.fetch.service import FetchService, FetchSurroundings
from headrace.agent.peers.connection import PeerTerms
from headrace.agent.peers.forwarding.service import ForwardService
from headrace.agent.produce.callbacks import Callbacks
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.agent.serve.handlers import without_coordinator
from headrace.agent.serve.housekeeping import Housekeeper
from headrace.config.settings import Settings
from headrace.metastore.api.agents import Listener
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.process_context import ProcessContext
from load.contexts import a_context
from tests.agent.groups.groups_world import Coordinating
from tests.nouns import nouns
from tests.pauses.neighbours import PORTS_FROM
from tests.pauses.servers import SESSION_MS, BucketLine, Line
from tests.simulation.clocks import SimulatedClock
from tests.simulation.loop import OWNER

if TYPE_CHECKING:
    from tests.pauses.world import World

HEARTBEAT_MS = 300
CONTROLLER_TIMES = ControllerTimes(
    lease_ms=900, session_timeout_ms=SESSION_MS, snapshot_interval_ms=3_600_000, snapshot_bytes=1
)
LINGER_MS = 25
FEED_POLL_MS = 100
ZONE = "zone"
SECRET = b"of both agents"
CLIENTS, AGENTS = "PLAINTEXT", "INTERNAL"
"""Listeners."""


async def _unreachable(host: str, port: int) -> AgentLink:
    raise OSError(errno.ECONNREFUSED, "controllers have no links here")


def _listener(node_id: int) -> Listener:
    return Listener(CLIENTS, f"agent-{node_id}", PORTS_FROM + node_id, 0)


class Process:
    """Its node id is its owner number on the loop. Make, `start` and `stop` it in `context`."""

    def __init__(self, world: World, node_id: int) -> None:
        self.node_id = node_id
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, node_id)
        self.is_serving = False
        self.is_stopped = False
        line: Any = Line(world)
        clock = SimulatedClock(world.loop, start=100.0 * node_id)
        rng = random.Random(node_id)
        registry = CollectorRegistry()
        follower = MetadataFollower(line)
        settings = Settings(
            linger_ms=LINGER_MS, upload_parallelism=1, feed_poll_interval_ms=FEED_POLL_MS, broker_rack=ZONE
        )
        bucket = BucketLine(world)
        context = a_context(nouns(line), clock, store=bucket, settings=settings, rng=rng, registry=registry)
        self.membership = Membership(
            context,
            follower,
            Identity(node_id, f"agent-{node_id}", PORTS_FROM + node_id, ZONE),
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=lambda: SESSION_MS,
            health=HeartbeatHealth(clock),
        )
        self.cluster = Cluster("pauses", world.servers.model.shards, follower, self.membership)
        self.controller = Controller(
            context,
            follower,
            lambda: CONTROLLER_TIMES,
            controller_steps(
                context, follower, lambda: CONTROLLER_TIMES, lambda image: [JobSchedule("retention", 1_000)]
            ),
            held=HeldLease(clock),
            node_id=lambda: node_id,
            connect=_unreachable,
        )
        around = FetchSurroundings(traffic=ZoneTraffic(ZONE, registry), zone_secret=SECRET)
        self.fetch = FetchService(context, self.cluster, around)
        self.produce = ProducePipeline(
            context,
            self.cluster,
            Callbacks(
                database_now_ms=self.fetch.database_now_ms,
                on_flushed=self.fetch.on_flushed,
                on_committed=self.fetch.on_committed,
                on_fenced=self.membership.check_now,
                log_start_offset=self.fetch.log_start_offset,
            ),
            seen=None,
            authorizer=None,
        )
        self._housekeeper = Housekeeper(line, clock, rng, registry)
        self._housekeeping: asyncio.Task[None] | None = None
        self.groups = Coordinating(self.cluster, line, clock, node_id)
        self.clock = clock
        self.dispatcher = Dispatcher()
        shared = SharedAddress(self.cluster, lambda: world.forwards, AGENTS, (_listener(node_id),))
        self.forwarding = self._compose_forwarding(shared, context)

    def _compose_forwarding(self, shared: SharedAddress, context: ProcessContext) -> ForwardService:
        """Return what clients ask of groups goes to their coordinator, if agents forward."""
        terms = PeerTerms(SECRET, lambda: self.cluster.node_id, self.fetch.database_now_ms, AGENTS)
        unavailable = without_coordinator(context, self.cluster)
        forward = ForwardService(context, terms, self.cluster, shared, unavailable, self.dispatcher.handle)
        routes = routes_of(COORDINATOR_ROWS)
        served = {key: forward.wrap(routes[key], handler) for key, handler in self.groups.handlers.items()}
        for key, handler in served.items():
            if COORDINATOR_ROWS[key].is_advertised:
                self.dispatcher.register(key, handler)
        for api_key, handler in forward.serve(routes).items():
            self.dispatcher.register_unadvertised(api_key, handler)
        self.cluster.follower.on_image.append(forward.links.on_image)
        self.groups.handlers = served
        return forward

    async def start(self) -> None:
        """Do the same as Agent.start."""
        await self.cluster.follower.catch_up()
        await self.fetch.start()
        await self.produce.start()
        await self.cluster.start()
        self._housekeeping = asyncio.create_task(self._housekeeper.run())
        self.controller.start()
        self.is_serving = True

    async def stop(self) -> None:
        """Do the same as Agent.stop."""
        await self.membership.controlled_shutdown()
        self.fetch.drain()
        self.forwarding.drain()
        self.is_serving = False
        await self.produce.drain()
        await self.groups.requests.close()
        await self.produce.close()
        await self.controller.stop()
        await self.cluster.stop()
        await self.forwarding.close()
        await self.fetch.close()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        self.is_stopped = True
