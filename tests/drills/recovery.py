"""What drills and floods have in common: clients that are warm, metrics of all agents, and the time to recover.

Place: used by tests/drills/run.py and tests/flood/run.py.
Invariant: recovery is measured without hands: all agents are ready, and both clients make progress.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from confluent_kafka.admin import AdminClient, NewTopic

from tests.drills.clients import PARTITIONS, DrillClients
from tests.drills.operator import readiness
from tests.torture.cluster import TortureCluster

PATIENCE_SECONDS = 120.0
WARM_UP_RECORDS = 60
RECOVERED_EVENTS = 10


def begin_clients(cluster: TortureCluster, clients: DrillClients, topics: Sequence[str]) -> None:
    """Create the topics and start the clients; returns when records flow."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics]).values():
        created.result(60)
    clients.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while len(clients.consumed) < WARM_UP_RECORDS and time.monotonic() < until:
        time.sleep(0.1)


async def summed_metrics(cluster: TortureCluster) -> dict[str, float]:
    """Each metric, summed over the agents."""
    total: Counter[str] = Counter()
    for agent in cluster.agents.values():
        total.update(await asyncio.to_thread(agent.read_metrics))
    return dict(total)


async def seconds_to_recover(cluster: TortureCluster, clients: DrillClients) -> float | None:
    """Return the seconds from now until all agents are ready and both clients made progress; None if
    that takes PATIENCE_SECONDS.
    """
    began, acks, reads = time.monotonic(), len(clients.acknowledged), len(clients.consumed)
    while time.monotonic() < began + PATIENCE_SECONDS:
        progress = min(len(clients.acknowledged) - acks, len(clients.consumed) - reads)
        if progress >= RECOVERED_EVENTS and not await readiness(cluster.agents):
            return time.monotonic() - began
        await asyncio.sleep(0.1)
    return None
