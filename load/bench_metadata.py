"""What a big cluster's metadata costs: `python -m load.bench_metadata [--partitions 1000000]`.

Builds a log of so many partitions in memory, then from it the image, its snapshot, the image from that
snapshot, the image after one more record, and Metadata answers (v12, all topics) of 10,000 partitions
for three agents. No Postgres, no network: seconds of this process's CPU, each the least of three
rounds but for the big log, which is run once. Memory is what the resident set grew by.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from headrace.agent.cluster.routing import Routes
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.log.kip631_records import BrokerEndpoint, RegisterBrokerRecord, TopicRecord, UnfenceBrokerRecord
from headrace.metastore.log.partition_records import encode_plain_partition
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.clock import SystemClock

T = TypeVar("T")
ROUNDS = 3
ANSWER_PARTITIONS = 10_000
METADATA_KEY, METADATA_VERSION = 3, 12
ALL_TOPICS = bytes(4)
"""Body of a Metadata v12 request: no list of topics, no creation, no operations, no tags."""


def topic_log(topics: int, partitions: int) -> list[bytes]:
    """Framed records of topics with so many partitions each."""
    rng = random.Random(7)
    log = []
    for number in range(topics):
        topic_id = uuid.UUID(int=rng.getrandbits(128), version=4)
        own = TopicRecord(
            topic_name=f"topic-{number:06}",
            topic_id=topic_id,
            initial_partition_count=partitions,
            undeleted_partition_count=partitions,
        )
        log.append(encode_record(own))
        log += [encode_plain_partition(index, topic_id.bytes, 0) for index in range(partitions)]
    return log


def agent_log(first_offset: int, agents: int) -> list[bytes]:
    """Framed records of unfenced agents."""
    log: list[bytes] = []
    for node_id in range(1, agents + 1):
        epoch = first_offset + len(log)
        registration = RegisterBrokerRecord(
            broker_id=node_id,
            incarnation_id=uuid.UUID(int=node_id),
            broker_epoch=epoch,
            end_points=(BrokerEndpoint(name="PLAINTEXT", host=f"agent-{node_id}", port=9092, security_protocol=0),),
            features=(),
            rack=None,
        )
        log += [encode_record(registration), encode_record(UnfenceBrokerRecord(broker_id=node_id, broker_epoch=epoch))]
    return log


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds, and the result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def least(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest round."""
    return min(timed(work)[0] for _ in range(ROUNDS))


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure_image(topics: int, partitions: int) -> None:
    """One row: a log of this shape, its image and its snapshot."""
    log = topic_log(topics, partitions)
    log += agent_log(len(log), 3)
    gc.collect()
    before = resident_bytes()
    build_s, image = timed(lambda: apply(MetadataImage(), log))
    gc.collect()
    grown = resident_bytes() - before
    snapshot_s, data = timed(lambda: encode_snapshot(image))
    load_s, loaded = timed(lambda: load_snapshot(data))
    assert loaded == image
    one_more = [encode_record(UnfenceBrokerRecord(broker_id=1, broker_epoch=image.agents[1].broker_epoch))]
    step_s = least(lambda: apply(image, one_more))
    print(
        f"{topics:>8} {partitions:>10} {len(log):>9} {build_s:7.2f} {build_s / len(log) * 1e6:6.2f} {grown / 1e6:7.0f}"
        f" {snapshot_s:8.2f} {len(data) / 1e6:8.1f} {load_s:7.2f} {step_s * 1e3:9.2f}",
        flush=True,
    )


class View:
    """Implements agent.cluster.view.ClusterView on one image that never moves."""

    cluster_id = "bench"
    commit_shards = 8
    node_id = 1
    broker_epoch = 0

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._routes = Routes(image, self.commit_shards)

    async def catch_up(self) -> MetadataImage:
        return self.image

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return self._routes.leader(partition_key, zone)

    def coordinator(self, group_id: str) -> AgentImage | None:
        return self._routes.coordinator(group_id)


async def measure_answer() -> None:
    """Metadata of 10,000 partitions: the first time for an image, and again."""
    log = topic_log(100, ANSWER_PARTITIONS // 100)
    image = apply(MetadataImage(), log + agent_log(len(log), 3))
    cluster = View(image)
    creation = TopicCreation(
        cluster, object.__new__(PostgresMetastore), SystemClock(), random.Random(1), lambda: TopicDefaults(1, 1)
    )
    request = Request(
        connection=ClientConnection(1, "bench"),
        api_key=METADATA_KEY,
        api_version=METADATA_VERSION,
        correlation_id=1,
        client_id="bench",
        body=memoryview(ALL_TOPICS),
        received_at=0.0,
    )

    async def cost(answer: Callable[[], Awaitable[object]]) -> float:
        figures = []
        for _ in range(ROUNDS):
            began = time.process_time()
            await answer()
            figures.append(time.process_time() - began)
        return min(figures)

    def handler() -> Metadata:
        return Metadata(cluster, creation, lambda: False, shared=None, counts=None)

    warm = handler()
    cold_s = await cost(lambda: handler()(request))
    response = await warm(request)
    cached_s = await cost(lambda: warm(request))
    size = sum(len(part) for part in response.buffers or ())
    print(f"\nMetadata v{METADATA_VERSION}, {ANSWER_PARTITIONS} partitions, {size} bytes", flush=True)
    print(
        f"  cold {cold_s * 1e3:8.2f} ms   cached {cached_s * 1e6:8.1f} us   ratio {cold_s / cached_s:.0f}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="what a big cluster's metadata costs")
    parser.add_argument("--partitions", type=int, default=1_000_000)
    total = parser.parse_args().partitions
    print("CPU seconds; MB are 10^6 bytes")
    print(
        f"{'topics':>8} {'partitions':>10} {'records':>9} {'build':>7} {'us/rec':>6} {'MB':>7}"
        f" {'snapshot':>8} {'MB':>8} {'load':>7} {'+1, ms':>9}"
    )
    for partitions in (1_000, 10):
        measure_image(total // partitions, partitions)
    asyncio.run(measure_answer())


if __name__ == "__main__":
    main()
