"""A controller on injected time, with its follower and its metrics."""

from __future__ import annotations

import asyncio
import errno
import random

from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.agent_links import AgentLink, Connect
from headrace.agent.cluster.controller.controller import Controller, controller_steps
from headrace.agent.cluster.controller.rounds import ControllerTimes, HeldLease
from headrace.agent.cluster.follower import MetadataFollower, MetadataMetrics
from headrace.metastore.api.jobs import JobSchedule
from headrace.storage.clock import Clock
from load.contexts import a_context
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.nouns import nouns

TIMES = ControllerTimes(
    lease_ms=3_000, session_timeout_ms=18_000, snapshot_interval_ms=3_600_000, snapshot_bytes=1_000_000
)


async def _unreachable(host: str, port: int) -> AgentLink:
    raise OSError(errno.ECONNREFUSED, "no network in this test")


class Candidate:
    """A controller, its follower, and its metrics."""

    def __init__(
        self,
        api: FakeClusterApi,
        node_id: int,
        times: ControllerTimes = TIMES,
        clock: Clock | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`connect` None: no agent can be reached."""
        self.registry = CollectorRegistry()
        self.follower = MetadataFollower(nouns(api).cluster)
        own_clock = clock or api.clock
        context = a_context(nouns(api), own_clock, rng=random.Random(node_id), registry=self.registry)
        self.controller = Controller(
            context,
            self.follower,
            lambda: times,
            controller_steps(
                context,
                self.follower,
                lambda: times,
                lambda image: [JobSchedule("retention", 300_000), JobSchedule("sweep", 3_600_000)],
            ),
            held=HeldLease(own_clock),
            node_id=lambda: node_id,
            connect=connect or _unreachable,
        )
        MetadataMetrics(self.follower, self.registry)
        self.controller.start()

    async def die(self) -> None:
        """SIGKILL: nothing is resigned."""
        for task in self.controller._tasks:
            task.cancel()
        await asyncio.gather(*self.controller._tasks, self.controller._links.close(), return_exceptions=True)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"headrace_{name}", labels)
