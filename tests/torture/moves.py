"""Leaders that move there and back again while clients write, by reassignments of single partitions.

Place: together with the faults of a torture run (`--leaders-move`). A producer then has batches in flight to two
agents, and comes back to one over a connection that stayed open (decisions/0096).
Invariant: which partitions move, and when, is a function of the seed; how far they get depends on the agents.
"""

from __future__ import annotations

import asyncio
import datetime
import random
import time
from collections import Counter

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kio.schema.alter_partition_reassignments.v0 import request as v0
from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i32Timedelta

from headrace.protocol.client.transport import ClientConfig, ask, parse_servers
from headrace.storage.errors import HeadraceError

GAP_MEAN_S = 1.5
"""Mean seconds between the ends of two round trips."""
AWAY_S = (0.0, 0.6)
ANSWER_S = 5


class LeaderMoves:
    """Moves of one topic's leaders. `counted`: moves that were made, and those that no agent took."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._rng = random.Random(f"moves {seed}")
        self.counted: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Move one partition after the other, until the time is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            agents = await asyncio.to_thread(self._agents)
            partition = self._rng.randrange(self._partitions)
            home, away = self._rng.sample(range(3), 2)
            for place in (home, away, home):
                if agents:
                    await asyncio.to_thread(self._move, partition, agents[place % len(agents)])
                await asyncio.sleep(self._rng.uniform(*AWAY_S))
            await asyncio.sleep(self._rng.expovariate(1 / GAP_MEAN_S))

    def _agents(self) -> list[int]:
        try:
            admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
            return sorted(admin.list_topics(self._topic, timeout=ANSWER_S).brokers)
        except KafkaException:
            return []

    def _move(self, partition: int, node_id: int) -> None:
        moved = v0.ReassignablePartition(partition_index=i32(partition), replicas=(BrokerId(node_id),))
        request = v0.AlterPartitionReassignmentsRequest(
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=ANSWER_S)),
            topics=(v0.ReassignableTopic(name=TopicName(self._topic), partitions=(moved,)),),
        )
        config = ClientConfig(parse_servers(self._bootstrap), request_timeout_ms=ANSWER_S * 1000)
        try:
            answer = ask(config, request, AlterPartitionReassignmentsResponse)
        except HeadraceError:
            self.counted["leader_moves_unanswered"] += 1
            return
        codes = [each.error_code for topic in answer.responses for each in topic.partitions]
        self.counted["leader_moves" if codes and not any(codes) else "leader_moves_refused"] += 1
