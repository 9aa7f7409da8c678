"""Agents that take batches at a given rate and commit them as inline files or by way of the bucket.

Place: `python -m load.workloads.inline_agents PLAN`, a child process under load/benchmarks/inline_*.py, with the
protocol of load/workloads/committing.py: it prints `prepared`, waits for a line, works, and prints what it counted as
JSON, every `report_seconds` and at the end. Real are the segment files, the commits, the slots, and the policy with the
cluster's limits (agent/produce/inline_policy.py); an agent's other parts are not here.
The client of a request is its first partition, for the policy.
An agent has two open files as the flusher has them: the one that may be inline closes as soon as no call is under way,
the one for the bucket after LINGER_S; a PUT takes `put_ms`. One call at a time has all that is ready.
Invariant: batches of a partition are committed in the order of their sequences: a partition is in one open file at a
time, and a file waits for those that were closed before it and share a partition with it, also for their PUT.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import struct
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headrace.agent.produce.commit import PAUSE_MIN_S
from headrace.agent.produce.inline_policy import InlinePolicy
from headrace.agent.produce.inline_watch import PAUSE_S, SLOT_SHARE, inline_limits
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration, RegisteredAgent
from headrace.metastore.api.commit import BatchOutcome, FileAnswer, FileCommit, StagedBatch
from headrace.metastore.api.inline import NO_SLOT
from headrace.metastore.keys import commit_shard, partition_key
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import HeadraceError
from headrace.storage.file_id import new_file_id, new_inline_file_id, object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.header import CRC_START, batch_crc, read_header
from headrace.storage.segment.writer import SegmentWriter

LINGER_S = 0.1
BUCKET_FILE_BYTES = 4 << 20
GROUP_INLINE_BYTES = 1 << 20
"""Bytes from which on a call takes no more inline files, as in agent/produce/commit.py."""
PUTS_MAX = 4
LEASE_MS = 3 * 3_600_000
RECORD_BYTES = 1_000
TEMPLATES = 8
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
"""Producer id, epoch and base sequence in a batch."""


@dataclass(frozen=True)
class AgentsPlan:
    """What one worker process does. `first`: node id of its first agent of `agents`; `of`: agents of all workers."""

    url: str
    bucket: str
    topic_number: int
    topic_id: str
    partitions: int
    first: int
    agents: int
    of: int
    mb_s: float
    """What arrives at this worker's agents together, MB/s."""
    batch_bytes: int
    request_batches: int
    """Batches of a request, each of another partition."""
    low_latency: bool
    put_ms: float
    seconds: float
    report_seconds: float
    file_bytes: int = Settings().low_latency_file_max_bytes


class ArrivedBatch(NamedTuple):
    partition: int
    key: int
    data: bytes
    sequence: int
    at: float


@dataclass
class AgentCounts:
    """Counts since the last report. Times in ms: of calls, and from a batch's arrival to its answer, by place."""

    arrived_bytes: int = 0
    inline_bytes: int = 0
    """Bytes of files."""
    bucket_bytes: int = 0
    files: int = 0
    extents: int = 0
    commit_ms: list[float] = field(default_factory=list)
    inline_ms: list[float] = field(default_factory=list)
    bucket_ms: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    look_ms: list[float] = field(default_factory=list)
    """Times of looks at the slots, with turning them."""
    failures: int = 0
    """Calls that were repeated."""

    def take(self) -> str:
        """Return it as JSON, and set all of it to zero."""
        text = json.dumps(vars(self))
        for name, value in vars(AgentCounts()).items():
            setattr(self, name, value)
        return text

    def add(self, other: AgentCounts) -> None:
        """Count what another one has counted, too."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                self.refused.update(value)
            else:
                setattr(self, name, getattr(self, name) + value)


@dataclass
class _ReadyFile:
    commit: FileCommit
    batches: list[ArrivedBatch]
    is_stored: bool

    @property
    def is_inline(self) -> bool:
        return self.commit.body is not None

    @property
    def indexes(self) -> set[int]:
        return {batch.partition for batch in self.batches}


class SendingAgent:
    """One agent with its share of the partitions, and a separate producer for each of them."""

    def __init__(
        self,
        plan: AgentsPlan,
        number: int,
        store: PostgresMetastore,
        agent: RegisteredAgent,
        bucket: DirectoryStore,
        counted: AgentCounts,
    ) -> None:
        self._plan, self._number, self._store, self._agent = plan, number, store, agent
        self._bucket, self._counted = bucket, counted
        self._rng, self._topic_id = random.Random(f"agent {number}"), uuid.UUID(plan.topic_id)
        self._settings = Settings(low_latency_file_max_bytes=plan.file_bytes)
        self._policy = InlinePolicy(
            inline_limits(self._settings, plan.of), lambda reason: self._counted.refused.update([reason.value])
        )
        share = min(store.commit_shards, plan.of)
        self._indexes = [
            index
            for index in range(plan.partitions)
            if commit_shard(partition_key(plan.topic_number, index), store.commit_shards) % share == number % share
        ]
        self._templates = list(_templates(plan.batch_bytes, self._rng))
        self._records = read_header(self._templates[0]).record_count
        self._sequences: Counter[int] = Counter()
        self._inline: list[ArrivedBatch] = []
        self._for_bucket: list[ArrivedBatch] = []
        self._closed: list[_ReadyFile] = []
        """In the order in which they were closed."""
        self._wake, self._is_calling = asyncio.Event(), False
        self._puts = asyncio.Semaphore(PUTS_MAX)

    async def look(self) -> None:
        """See the state of the slots, as agent/produce/inline_watch.py does."""
        api, settings = self._store.inline, self._settings
        began = at = time.monotonic()
        state = await api.inline_state()
        if state.slot == NO_SLOT or (state.held_bytes and self._rng.random() * self._plan.of < 1):
            await api.rotate_inline_slots(
                settings.low_latency_held_max_bytes // SLOT_SHARE, settings.low_latency_move_ms
            )
            at, state = time.monotonic(), await api.inline_state()
        self._policy.learned(state, at)
        self._counted.look_ms.append((time.monotonic() - began) * 1e3)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._arrive(), self._watch(), self._close_for_bucket(tasks), self._call_again_and_again()):
                tasks.create_task(work)

    async def _watch(self) -> None:
        while self._plan.low_latency:
            try:
                await self.look()
            except HeadraceError:
                self._counted.failures += 1
            await asyncio.sleep(PAUSE_S * (0.5 + self._rng.random() / 2))

    async def _arrive(self) -> None:
        plan = self._plan
        pause = plan.batch_bytes * plan.request_batches * plan.agents / (plan.mb_s * 1e6)
        due = time.monotonic() + self._rng.uniform(0, pause)
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._request(due)
            due += self._rng.expovariate(1 / pause)

    def _request(self, at: float) -> None:
        chosen = sorted(self._rng.sample(self._indexes, min(self._plan.request_batches, len(self._indexes))))
        batches = [self._batch(index, at) for index in chosen]
        size = sum(len(batch.data) for batch in batches)
        self._counted.arrived_bytes += size
        may_be = self._plan.low_latency and not self._policy.is_refused(size, time.monotonic(), str(chosen[0]))
        if may_be and not _indexes(self._for_bucket) & set(chosen):
            if _size(self._inline) + size > self._plan.file_bytes:
                self._close_inline()
            self._inline += batches
            if not self._is_calling:
                self._close_inline()
                self._wake.set()
            return
        if _indexes(self._inline) & set(chosen):
            self._close_inline()
        self._for_bucket += batches

    def _close_inline(self) -> None:
        batches, self._inline = self._inline, []
        if not batches:
            return
        slot = self._policy.take(_size(batches), time.monotonic())
        if slot == NO_SLOT:
            self._for_bucket += batches
            return
        body, staged = self._laid_out(batches)
        commit = FileCommit(new_inline_file_id(time.time_ns() // 1_000_000, slot, self._rng), len(body), staged, body)
        self._counted.inline_bytes += len(body)
        self._closed.append(_ReadyFile(commit, batches, is_stored=True))
        self._wake.set()

    async def _close_for_bucket(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await asyncio.sleep(LINGER_S * self._rng.uniform(0.9, 1.1))
            while self._for_bucket:
                await self._puts.acquire()
                count = max(1, BUCKET_FILE_BYTES // self._plan.batch_bytes)
                batches, self._for_bucket = self._for_bucket[:count], self._for_bucket[count:]
                body, staged = self._laid_out(batches)
                commit = FileCommit(new_file_id(time.time_ns() // 1_000_000, self._rng), len(body), staged)
                file = _ReadyFile(commit, batches, is_stored=False)
                self._counted.bucket_bytes += len(body)
                self._closed.append(file)
                tasks.create_task(self._put(file, body))

    async def _put(self, file: _ReadyFile, body: bytes) -> None:
        began = time.monotonic()
        await asyncio.sleep(self._plan.put_ms / 1000)
        await self._bucket.put(object_key(file.commit.file_id), body)
        self._puts.release()
        self._policy.stored(time.monotonic() - began)
        file.is_stored = True
        self._wake.set()

    async def _call_again_and_again(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while group := self._next_group():
                await self._call(group)
                self._close_inline()

    def _next_group(self) -> list[_ReadyFile]:
        group, left, waiting, size = list[_ReadyFile](), list[_ReadyFile](), set[int](), 0
        for file in self._closed:
            if file.is_stored and size < GROUP_INLINE_BYTES and not file.indexes & waiting:
                group.append(file)
                size += file.commit.size if file.is_inline else 0
            else:
                left.append(file)
                waiting |= file.indexes
        self._closed = left
        return group

    async def _call(self, group: list[_ReadyFile]) -> None:
        self._is_calling = True
        began = time.monotonic()
        answers = await self._answers([file.commit for file in group])
        now, counted = time.monotonic(), self._counted
        self._is_calling = False
        counted.commit_ms.append((now - began) * 1e3)
        if any(file.is_inline for file in group):
            self._policy.committed(now - began, now)
        for file, answer in zip(group, answers, strict=True):
            assert all(batch.outcome is BatchOutcome.APPENDED for batch in answer.batches), answer
            times = counted.inline_ms if file.is_inline else counted.bucket_ms
            times += [(now - batch.at) * 1e3 for batch in file.batches]
            counted.files += 1
            counted.extents += len(file.indexes)

    async def _answers(self, commits: list[FileCommit]) -> list[FileAnswer]:
        """Call until there is an answer, as agent/produce/commit.py does."""
        while True:
            try:
                return await self._store.commits.commit_files(*self._agent, commits)
            except HeadraceError:
                self._counted.failures += 1
                await asyncio.sleep(PAUSE_MIN_S)

    def _laid_out(self, batches: list[ArrivedBatch]) -> tuple[bytes, list[StagedBatch]]:
        writer, staged = SegmentWriter(), []
        now_ms = time.time_ns() // 1_000_000
        for batch in sorted(batches, key=lambda batch: (batch.partition, batch.sequence)):
            header = read_header(batch.data)
            position = writer.add(self._topic_id, batch.partition, batch.key, memoryview(batch.data), header)
            identity = (header.producer_id, header.producer_epoch, header.base_sequence)
            staged.append(
                StagedBatch(batch.key, position, len(batch.data), self._records, now_ms, *identity, leader_epoch=0)
            )
        return writer.finish(), staged

    def _batch(self, index: int, at: float) -> ArrivedBatch:
        sequence = self._sequences[index]
        self._sequences[index] += self._records
        data = bytearray(self._rng.choice(self._templates))
        _PRODUCER.pack_into(data, _PRODUCER_AT, self._number, 0, sequence)
        data[CRC_START - 4 : CRC_START] = batch_crc(memoryview(data)).to_bytes(4, "big")
        return ArrivedBatch(index, partition_key(self._plan.topic_number, index), bytes(data), sequence, at)


def _indexes(batches: list[ArrivedBatch]) -> set[int]:
    return {batch.partition for batch in batches}


def _size(batches: list[ArrivedBatch]) -> int:
    return sum(len(batch.data) for batch in batches)


def _templates(batch_bytes: int, rng: random.Random) -> Iterator[bytes]:
    """Batches of records without compression; half of each value is the same words, half is noise, as logs are."""
    records = max(1, batch_bytes // RECORD_BYTES)
    each = max(batch_bytes // records - 12, 1)
    now_ms = time.time_ns() // 1_000_000
    for _ in range(TEMPLATES):
        words = b"level=info status=200 ".ljust(each // 2, b".")
        values = [words + rng.randbytes(each - len(words)) for _ in range(records)]
        yield encode_batch([Record(n, now_ms, None, value) for n, value in enumerate(values)], base_offset=0)


async def _work(plan: AgentsPlan) -> None:
    store = await PostgresMetastore.open(plan.url, Settings(metastore_pool_size=max(plan.agents, 2)))
    counted, bucket = AgentCounts(), DirectoryStore(Path(plan.bucket), SystemClock())
    agents = []
    for number in range(plan.first, plan.first + plan.agents):
        agent = await store.cluster.register_agent(AgentRegistration(number, uuid.uuid4(), "127.0.0.1", 1, None))
        head = await store.cluster.metadata_head()
        await store.cluster.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=LEASE_MS)
        agents.append(SendingAgent(plan, number, store, agent, bucket, counted))
    if plan.low_latency:
        for each in agents:
            await each.look()
    gc.collect()
    gc.freeze()
    print("prepared", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    running = asyncio.gather(*(agent.run() for agent in agents))
    for report in range(1, round(plan.seconds / plan.report_seconds) + 1):
        done, _ = await asyncio.wait({running}, timeout=began + report * plan.report_seconds - time.monotonic())
        if done:
            break
        print(counted.take(), flush=True)
    if not running.done():
        running.cancel()
    await asyncio.gather(running, return_exceptions=not running.done())
    await store.close()


if __name__ == "__main__":
    asyncio.run(_work(AgentsPlan(**json.loads(sys.argv[1]))))
