"""Agents that commit made-up files, and worker processes that run many of them.

Place: in this process under load/benchmarks/ceiling.py and feed.py; as `python -m load.workloads.committing PLAN` a
child process under committers.py and commit_hour.py, because one Python process would be the first bottleneck. A worker
prints `prepared`, waits for a line, commits, waits for another line, and prints its latencies in milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration, RegisteredAgent
from headrace.metastore.api.commit import BatchOutcome, FileCommit, StagedBatch
from headrace.metastore.api.inline import NO_SLOT
from headrace.metastore.keys import commit_shard, partition_key
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id, new_inline_file_id

RECORDS = 10
"""Records of a batch."""
BATCH_BYTES = 16_384
PACE_SECONDS = (0.1, 0.25)
LEASE_MS = 3_600_000
Worker = subprocess.Popen[str]


class Shape(NamedTuple):
    """A file: so many extents, of so many batches each."""

    extents: int
    batches: int
    idempotent: bool

    def __str__(self) -> str:
        return f"{self.extents:>5} x {self.batches:<3} {'idempotent' if self.idempotent else 'plain':<10}"


@dataclass
class CommittingAgent:
    """One of several; its producer continues where it was, partition by partition."""

    number: int
    store: PostgresMetastore
    agent: RegisteredAgent
    rng: random.Random
    sequences: dict[int, int] = field(default_factory=dict)

    def make(self, shape: Shape, keys: Sequence[int], batch_bytes: int, slot: int = NO_SLOT) -> FileCommit:
        """A file that the bucket might hold; with a slot, an inline file of noise."""
        chosen = sorted(self.rng.sample(keys, min(shape.extents, len(keys))))
        batches = list(self._batches(shape, chosen, batch_bytes))
        born_ms, size = time.time_ns() // 1_000_000, len(batches) * batch_bytes
        if slot == NO_SLOT:
            return FileCommit(new_file_id(born_ms, self.rng), size, batches)
        return FileCommit(new_inline_file_id(born_ms, slot, self.rng), size, batches, self.rng.randbytes(size))

    def _batches(self, shape: Shape, keys: Sequence[int], batch_bytes: int) -> Iterator[StagedBatch]:
        now_ms = time.time_ns() // 1_000_000
        for place in range(len(keys) * shape.batches):
            key = keys[place // shape.batches]
            batch = StagedBatch(key, place * batch_bytes, batch_bytes, RECORDS, now_ms, leader_epoch=0)
            if shape.idempotent:
                sequence = self.sequences.get(key, 0)
                self.sequences[key] = sequence + RECORDS
                batch = batch._replace(producer_id=self.number, producer_epoch=0, base_sequence=sequence)
            yield batch

    async def commit(self, file: FileCommit) -> float:
        """Seconds that it took; every batch must have been appended."""
        began = time.perf_counter()
        (answer,) = await self.store.commits.commit_files(*self.agent, [file])
        took = time.perf_counter() - began
        assert len(answer.batches) == len(file.batches), answer.status
        assert all(batch.outcome is BatchOutcome.APPENDED for batch in answer.batches)
        return took


@dataclass(frozen=True)
class CommitterPlan:
    """What one worker process does."""

    url: str
    topic_number: int
    partitions: int
    first: int
    """Node id of its first committer; they count up."""
    committers: int
    of: int
    """Committers of all workers."""
    extents: int
    batches: int
    any_partition: bool
    paced: bool
    seconds: float
    report_seconds: float = 0.0
    """How often the worker prints the latencies since the last time, as a line; 0: once, at the end."""
    batch_bytes: int = BATCH_BYTES
    slot: int = NO_SLOT
    """The slot of its files, which are inline; NO_SLOT: the bucket might hold them."""


async def _work(plan: CommitterPlan) -> None:
    """Prepare, say so, wait for the word, commit, print the latencies in milliseconds."""
    store = await PostgresMetastore.open(plan.url, Settings(metastore_pool_size=max(plan.committers, 2)))
    head = await store.cluster.metadata_head()
    shape = Shape(plan.extents, plan.batches, idempotent=True)
    agents: list[tuple[CommittingAgent, list[int]]] = []
    for number in range(plan.first, plan.first + plan.committers):
        agent = await store.cluster.register_agent(AgentRegistration(number, uuid.uuid4(), "127.0.0.1", 1, None))
        head = max(head, await store.cluster.metadata_head())
        await store.cluster.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=LEASE_MS)
        each = CommittingAgent(number, store, agent, random.Random(f"committer {number}"))
        keys = _keys(plan, number, store.commit_shards)
        known = keys if not plan.any_partition else keys[: 10 * plan.extents]
        await each.commit(each.make(Shape(len(known), 1, idempotent=True), known, plan.batch_bytes))
        agents.append((each, known))
    gc.collect()
    gc.freeze()
    print("prepared", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    latencies: list[float] = []
    began = time.monotonic()
    commits = (_commit(agent, keys, shape, plan, began + plan.seconds, latencies) for agent, keys in agents)
    await asyncio.gather(*commits, _report(plan, began, latencies))
    await asyncio.to_thread(sys.stdin.readline)  # the backends' CPU is read while they are there
    _print(latencies)
    await store.close()


async def _report(plan: CommitterPlan, began: float, latencies: list[float]) -> None:
    reports = round(plan.seconds / plan.report_seconds) - 1 if plan.report_seconds else 0
    for number in range(1, reports + 1):
        await asyncio.sleep(max(0.0, began + number * plan.report_seconds - time.monotonic()))
        _print(latencies)
        latencies.clear()


def _print(latencies: list[float]) -> None:
    print(json.dumps([round(seconds * 1e3, 2) for seconds in latencies]), flush=True)


async def _commit(
    agent: CommittingAgent, keys: list[int], shape: Shape, plan: CommitterPlan, until: float, latencies: list[float]
) -> None:
    due = time.monotonic() + (agent.rng.uniform(0, PACE_SECONDS[1]) if plan.paced else 0)
    while True:
        file = agent.make(shape, keys, plan.batch_bytes, plan.slot)
        if plan.paced:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic()) + agent.rng.uniform(*PACE_SECONDS)
        if time.monotonic() >= until:
            return
        latencies.append(await agent.commit(file))


def _keys(plan: CommitterPlan, number: int, shards: int) -> list[int]:
    keys = [partition_key(plan.topic_number, index) for index in range(plan.partitions)]
    if plan.any_partition:
        return random.Random(number).sample(keys, len(keys))
    share = min(shards, plan.of)
    return [key for key in keys if commit_shard(key, shards) % share == number % share]


def start_workers(plans: list[CommitterPlan]) -> list[Worker]:
    """Start a process for each plan; all are prepared and wait for a line on their stdin (`tell`)."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "load.workloads.committing", json.dumps(plan.__dict__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for plan in plans
    ]
    for worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline() != "prepared\n":
            raise RuntimeError("a worker ended before it was prepared")
    return workers


def tell(workers: list[Worker], word: str) -> None:
    """Write a line to each worker."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{word}\n")
        worker.stdin.flush()


def reported(workers: list[Worker]) -> list[float]:
    """Return the next latencies of all workers, in milliseconds."""
    found: list[float] = []
    for worker in workers:
        assert worker.stdout is not None
        found += json.loads(worker.stdout.readline())
    return found


if __name__ == "__main__":
    asyncio.run(_work(CommitterPlan(**json.loads(sys.argv[1]))))
