"""How long one request occupies an agent's event loop: `python -m load turns [--only NAME]`.

Builds the image of a cluster with 100,000 partitions and 1,000 agents in memory, and one with leaders dealt by topic,
and asks the handlers that have more work in a larger cluster, or with the longest request that is allowed (10,000
elements). The metastore answers from memory at once. Prints CPU in total, and the longest CPU time between two turns of
the event loop, with reading the request and writing the answer as the listener does. CPU of this process here, so other
programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from headrace.agent.limits.work_slices import WorkSlices
from headrace.metastore.api.agents import LEADER_SPREAD
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.storage.collector_tuning import tune_collector
from load.benchmarks.metadata import Stalls, agent_log, topic_log
from load.harness import Benchmark, BenchmarkRun
from load.workloads.image_view import ImageView
from load.workloads.long_requests import Counts, LongRequest, LongRequests, with_access

SHARDS = 1_024
COUNTS = Counts(acls=50_000, quotas=10_000, groups=10_000, transactions=10_000, named=9_990)
CLUSTERS = ((10_000, 10, 1_000, 0), (100_000, 1, 1_000, 0), (10_000, 10, 15, 10))
"""Topics, partitions of each, agents, level of leader.spread."""


def a_cluster(topics: int, partitions: int, agents: int, level: int) -> ImageView:
    """Return the view of an agent of the cluster."""
    log = topic_log(topics, partitions)
    log += agent_log(len(log), agents)
    if level:
        log.append(encode_record(FeatureLevelRecord(name=LEADER_SPREAD, min_feature_level=1, max_feature_level=level)))
    return ImageView(with_access(apply(MetadataImage(), log), COUNTS), SHARDS)


async def measure(run: BenchmarkRun, name: str, asked: LongRequest) -> None:
    """Tell one row."""
    await asyncio.sleep(0)
    began = time.process_time()
    with Stalls() as stalls:
        await asyncio.sleep(0)
        buffers = await (await asked.handler(asked.request)).encoded(WorkSlices().did)
        await asyncio.sleep(0)
    total_s = time.process_time() - began
    size = sum(map(len, buffers or ()))
    run.row(name, {"ms of CPU": total_s * 1e3, "ms of the longest turn": stalls.longest_s * 1e3, "bytes": size})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--only", default="", help="measure only requests with this in their name")


async def benchmark(run: BenchmarkRun) -> None:
    for topics, partitions, agents, level in CLUSTERS:
        view = a_cluster(topics, partitions, agents, level)
        requests = LongRequests(view, COUNTS)
        tune_collector()  # as an agent does
        run.note(f"{topics:,} topics x {partitions}, {agents:,} agents, {SHARDS:,} shards, leader.spread {level}")
        for name, make in (requests.all() | requests.short()).items():
            if run.args.only.lower() in name.lower():
                await measure(run, name, make())


BENCHMARK = Benchmark(
    "how long each request that lists what a cluster has occupies the event loop", benchmark, add_arguments
)
