"""What a big cluster's metadata costs: `python -m load metadata [--partitions 1000000] [--agents 1000]`.

Builds a log of so many partitions in memory, then from it the image, its snapshot, the image from that
snapshot, the image after one more record, and Metadata answers (v12, all topics) of 10,000 partitions
for three agents. No Postgres, no network: seconds of this process's CPU, each the least of three
rounds but for the big log, which is run once. Memory is what the resident set grew by.

Then a cluster of 100,000 partitions and so many agents in three zones, with 1,024 commit shards, and one with few
agents and leaders that are dealt by topic: what each change of the image costs an agent, Metadata of one topic and of
all, and the longest time for which the event loop ran nothing else. Time is CPU of this process here, too, so other
programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from headrace.agent.fetch.index.shard_interest import assigned_shards
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.metastore.api.agents import LEADER_SPREAD
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import (
    BrokerEndpoint,
    FeatureLevelRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnfenceBrokerRecord,
)
from headrace.metastore.log.records import encode_plain_partition, encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.request import ClientConnection, Request
from headrace.protocol.wire import uvarint
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from load.harness import Benchmark, BenchmarkRun
from load.workloads.image_view import ImageView

T = TypeVar("T")
ROUNDS = 3
ANSWER_PARTITIONS = 10_000
ANSWER_SHARDS = 8
CLUSTER_PARTITIONS = 100_000
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


def agent_log(first_offset: int, agents: int, first_node_id: int = 1) -> list[bytes]:
    """Framed records of unfenced agents in three zones."""
    log: list[bytes] = []
    for node_id in range(first_node_id, first_node_id + agents):
        epoch = first_offset + len(log)
        registration = RegisterBrokerRecord(
            broker_id=node_id,
            incarnation_id=uuid.UUID(int=node_id),
            broker_epoch=epoch,
            end_points=(BrokerEndpoint(name="PLAINTEXT", host=f"agent-{node_id}", port=9092, security_protocol=0),),
            features=(),
            rack="abc"[node_id % 3],
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


def measure_image(run: BenchmarkRun, topics: int, partitions: int) -> None:
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
    figures = {
        "records": len(log),
        "s to build": build_s,
        "us a record": build_s / len(log) * 1e6,
        "MB": grown / 1e6,
        "s of a snapshot": snapshot_s,
        "MB of it": len(data) / 1e6,
        "s to load it": load_s,
        "ms of one more record": step_s * 1e3,
    }
    run.row(f"{topics:,} topics x {partitions:,}", figures)


def metadata_handler(view: ImageView) -> Metadata:
    """Return the handler of Metadata, which has no answer yet."""
    creation = TopicCreation(
        view, object.__new__(PostgresMetastore).topics, SystemClock(), random.Random(1), lambda: TopicDefaults(1, 1)
    )
    return Metadata(view, DescribedTopics(view, creation, lambda: False), shared=None, counts=None)


def a_request(body: bytes, zone: str | None = None) -> Request:
    """Return a Metadata request of a client in the zone."""
    return Request(
        connection=ClientConnection(1, "bench"),
        api_key=METADATA_KEY,
        api_version=METADATA_VERSION,
        correlation_id=1,
        client_id="bench" if zone is None else f"bench,zone={zone}",
        body=memoryview(body),
        received_at=0.0,
    )


def one_topic(name: str) -> bytes:
    """Return the body of a Metadata v12 request for a topic by name."""
    return b"\x02" + bytes(16) + uvarint(len(name) + 1) + name.encode() + b"\0" + bytes(3)


async def measure_answer(run: BenchmarkRun) -> None:
    """Metadata of 10,000 partitions: the first time for an image, and again."""
    log = topic_log(100, ANSWER_PARTITIONS // 100)
    cluster = ImageView(apply(MetadataImage(), log + agent_log(len(log), 3)), ANSWER_SHARDS)
    request = a_request(ALL_TOPICS)

    async def cost(answer: Callable[[], Awaitable[object]]) -> float:
        figures = []
        for _ in range(ROUNDS):
            began = time.process_time()
            await answer()
            figures.append(time.process_time() - began)
        return min(figures)

    warm = metadata_handler(cluster)
    cold_s = await cost(lambda: metadata_handler(cluster)(request))
    response = await warm(request)
    cached_s = await cost(lambda: warm(request))
    size = sum(len(part) for part in response.buffers or ())
    figures = {"bytes": size, "ms cold": cold_s * 1e3, "us cached": cached_s * 1e6, "of cached": cold_s / cached_s}
    run.row(f"Metadata v{METADATA_VERSION}, {ANSWER_PARTITIONS:,} partitions", figures)


class Stalls:
    """Watches the event loop: the CPU time between two of its turns."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last = time.process_time()
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> Stalls:
        self._last = time.process_time()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._handle is not None
        self._handle.cancel()
        self._look()

    def _turn(self) -> None:
        self._look()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _look(self) -> None:
        now = time.process_time()
        self.longest_s, self._last = max(self.longest_s, now - self._last), now


async def measure_cluster(
    run: BenchmarkRun, title: str, shape: tuple[int, int], agents: int, shards: int, level: int
) -> None:
    """Rows of a cluster of topics x partitions and agents: what an agent does when its image changes, and for clients.

    `level`: of leader.spread.
    """
    topics, partitions = shape
    log = topic_log(topics, partitions)
    log += agent_log(len(log), agents)
    if level:
        log.append(encode_record(FeatureLevelRecord(name=LEADER_SPREAD, min_feature_level=1, max_feature_level=level)))
    image = apply(MetadataImage(), log)
    tune_collector()  # as an agent does
    run.note(f"{title}: {topics:,} topics x {partitions}, {agents:,} agents, {shards:,} shards, leader.spread {level}")
    view = ImageView(image, shards)
    await _answers(run, "first after the start", metadata_handler(view))
    handler = metadata_handler(view)
    await handler(a_request(one_topic("topic-000007"), "a"))
    await handler(a_request(ALL_TOPICS, "a"))
    newcomer = agent_log(image.offset, 1, first_node_id=agents + 1)
    added = TopicRecord(topic_name="added", topic_id=uuid.UUID(int=7), initial_partition_count=1)
    gone = image.agents[2]
    for what, records in (
        ("a topic was added", [encode_record(added)]),
        ("an agent came", newcomer),
        ("an agent went", [encode_record(FenceBrokerRecord(broker_id=2, broker_epoch=gone.broker_epoch))]),
    ):
        step_s, view.image = timed(partial(apply, view.image, records))
        routes_s, _ = timed(lambda: view.routes)
        run.row(what, {"ms image": step_s * 1e3, "ms routes": routes_s * 1e3})
        await _answers(run, f"Metadata after {what}", handler)
    zones = {agent.node_id: agent.rack for agent in view.image.live_agents()}
    assigned_s = least(lambda: assigned_shards(1, zones, shards))
    run.row("shards of the feed that an agent is assigned", {"ms": assigned_s * 1e3})


async def _answers(run: BenchmarkRun, title: str, handler: Metadata) -> None:
    """Metadata of one topic, and of all."""
    one_s = await _timed_answer(handler, a_request(one_topic("topic-000007"), "a"))
    other_s = await _timed_answer(handler, a_request(one_topic("topic-000008"), "a"))
    await asyncio.sleep(0)
    with Stalls() as stalls:
        every_s = await _timed_answer(handler, a_request(ALL_TOPICS, "a"))
    again_s = await _timed_answer(handler, a_request(ALL_TOPICS, "a"))
    figures = {
        "ms one topic": one_s * 1e3,
        "ms another": other_s * 1e3,
        "ms all": every_s * 1e3,
        "ms longest stall": stalls.longest_s * 1e3,
        "us again": again_s * 1e6,
    }
    run.row(title, figures)


async def _timed_answer(handler: Metadata, request: Request) -> float:
    began = time.process_time()
    await handler(request)
    return time.process_time() - began


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--agents", type=int, default=1_000)


def benchmark(run: BenchmarkRun) -> None:
    total, many = run.args.partitions, run.args.agents
    run.note("CPU seconds; MB are 10^6 bytes")
    for partitions in (1_000, 10):
        measure_image(run, total // partitions, partitions)
    for partitions in (1_000, 12):
        measure_image(run, CLUSTER_PARTITIONS // partitions, partitions)
    asyncio.run(measure_answer(run))
    for title, shape, agents, shards, level in (
        ("a large cluster", (8_334, 12), many, 1_024, 0),
        ("large topics", (100, 1_000), many, 1_024, 0),
        ("few agents", (8_334, 12), 12, 64, 0),
        ("dealt by topic", (8_334, 12), 12, 64, 10),
        ("large topics, dealt", (100, 1_000), 16, 64, 10),
    ):
        asyncio.run(measure_cluster(run, title, shape, agents, shards, level))


BENCHMARK = Benchmark(
    "a million partitions: image, snapshot, Metadata answers; and a cluster of 1,000 agents", benchmark, add_arguments
)
