"""Random histories of bulk writes on a real Postgres: drivers are killed, paused and run again; the sweeper, agents
and housekeeping work between their calls; time passes.

Fault model: before or after any call to the metastore a driver is killed, or paused for hours; a rerun of a batch has
other files than the attempt before. Objects are not modelled: the
sweeper is given every id that was made and that no row names, as if it saw all objects.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass, field
from typing import Any

from headrace.jobs.kinds import SWEEP_ORPHANS
from headrace.metastore.api.commit import BulkFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.scan.bulk.commit import BulkCommit, BulkWrite
from headrace.scan.errors import BulkWriteError
from headrace.storage.file_id import born_ms, term_ms
from tests.manual_clock import ManualClock
from tests.metastore.bulk_scenes import bulk_file, readable, staged_ids
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import Scene, batch, file_of
from tests.metastore.sessions import Session, move_time, rows
from tests.nouns import NOUNS, flat

SWEEP_MIN_AGE_MS = 7_200_000
HOUR = 3_600


@dataclass
class Attempt:
    """One driver's run of a batch."""

    writer: str
    batch_id: int
    files: list[BulkFile]
    began_ms: int
    task: asyncio.Task[bool] | None = None
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    lose_answer: bool = False


class GatedMetastore:
    """What a driver calls: each call waits for its turn."""

    def __init__(self, store: PostgresMetastore, attempt: Attempt) -> None:
        self._store, self._attempt = flat(store), attempt

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self

        async def call(*arguments: Any, **more: Any) -> Any:
            self._attempt.waiting.set()
            await self._attempt.gate.acquire()
            answer = await getattr(self._store, name)(*arguments, **more)
            if self._attempt.lose_answer:
                raise asyncio.CancelledError  # the driver is killed before the answer arrives
            return answer

        return call


class BulkHistory:
    """One history; `run`, then everything is checked."""

    def __init__(self, scene: Scene, connection: Session, seed: int) -> None:
        self.scene, self.connection, self.rng = scene, connection, random.Random(seed)
        self.clock = ManualClock()
        self.seconds = 0.0
        self.next_batch = dict.fromkeys(("query-a", "query-b"), 0)
        self.attempts: list[Attempt] = []
        self.succeeded: dict[tuple[str, int], bool] = {}
        self.condemned: set[uuid.UUID] = set()
        self.janitor: tuple[JobToken, uuid.UUID] | None = None

    async def run(self, steps: int) -> None:
        actions = {self.begin: 4, self.go_on: 12, self.kill: 3, self.agent_commits: 2, self.sweep: 1, self.finish: 2,
                   self.pass_time: 1}  # fmt: skip
        for _ in range(steps):
            (action,) = self.rng.choices(list(actions), list(actions.values()))
            await action()
        await self.end()

    async def begin(self) -> None:
        """A driver runs the next batch of a writer, or the newest again. It may begin the next one as soon as the
        last is decided.
        """
        writer = self.rng.choice(list(self.next_batch))
        if self.rng.random() < 0.5:
            query = "SELECT 1 FROM bulk_writes WHERE writer = %s AND batch_id = %s"
            self.next_batch[writer] += len(await rows(self.connection, query, writer, self.next_batch[writer]))
        batch_id = self.next_batch[writer]
        if batch_id and self.rng.random() < 0.3:
            batch_id -= 1
        now_ms = await self.scene.store.commits.database_ms()
        age_ms = self.rng.choice([0, 0, 90 * 60_000])  # of a term of two hours
        files = [
            bulk_file(now_ms, self.rng, self.rng.sample(self.scene.keys, self.rng.randint(1, 3)), age_ms=age_ms)
            for _ in range(self.rng.randint(0, 4))
        ]
        attempt = Attempt(writer, batch_id, files, now_ms)
        api: Any = GatedMetastore(self.scene.store, attempt)
        commit = BulkCommit(api, BulkWrite(writer, batch_id), self.clock, self.rng, chunk_runs=2)
        attempt.task = asyncio.create_task(commit.commit(files))
        self.attempts.append(attempt)
        await self._settle(attempt)

    async def go_on(self) -> None:
        """One driver makes some calls."""
        running = [attempt for attempt in self.attempts if attempt.task is not None]
        if running:
            attempt = self.rng.choice(running[-4:] if self.rng.random() < 0.8 else running)
            for _ in range(self.rng.randint(1, 4)):
                if attempt.task is not None:
                    await self._step(attempt)

    async def _step(self, attempt: Attempt) -> None:
        attempt.waiting.clear()
        attempt.gate.release()
        await self._settle(attempt)

    async def _settle(self, attempt: Attempt) -> None:
        """Settle until its next call, or its end."""
        assert attempt.task is not None
        waits = asyncio.ensure_future(attempt.waiting.wait())
        await asyncio.wait([waits, attempt.task], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        if not attempt.task.done():
            return
        task, attempt.task = attempt.task, None
        try:
            task.result()
        except asyncio.CancelledError:
            return
        except BulkWriteError as error:
            now_ms = await self.scene.store.commits.database_ms()
            self._check_refusal(attempt, now_ms, str(error))
            self.succeeded.setdefault((attempt.writer, attempt.batch_id), False)
            return
        self.succeeded[attempt.writer, attempt.batch_id] = True
        if attempt.batch_id == self.next_batch[attempt.writer]:
            self.next_batch[attempt.writer] += 1

    def _check_refusal(self, attempt: Attempt, now_ms: int, error: str) -> None:
        """A term ended, or a chunk was staged over a day ago."""
        late = any(now_ms >= born_ms(file.file_id) + term_ms(file.file_id) for file in attempt.files)
        assert late or now_ms > attempt.began_ms + 24 * HOUR * 1_000, f"refused without a reason: {error}"

    async def kill(self) -> None:
        """Before a call, or after one with a lost answer."""
        running = [attempt for attempt in self.attempts if attempt.task is not None]
        if running:
            attempt = self.rng.choice(running)
            assert attempt.task is not None
            if self.rng.random() < 0.5:
                attempt.lose_answer = True
                await self._step(attempt)
            else:
                attempt.task.cancel()
                await self._settle(attempt)

    async def agent_commits(self) -> None:
        """Another producer of the same partitions."""
        await self.scene.commit(
            file_of([batch(key) for key in self.scene.keys[:2]], age_ms=-round(self.seconds * 1000))
        )

    async def finish(self) -> None:
        await self.scene.store.housekeeping.finish_bulk_writes()
        await self.scene.store.housekeeping.prune_bulk_writes(10)

    async def pass_time(self) -> None:
        self.seconds += self.rng.choice([61, 61, HOUR / 2, 2 * HOUR, 30 * HOUR])
        await move_time(self.connection, self.seconds)

    async def sweep(self) -> None:
        """Every id that no row names."""
        if self.janitor is None:
            job = await self._sweeper()
            self.janitor = job, (await self.scene.store.files.janitor_state()).incarnation_id
        ids = await self.scene.store.files.unnamed_files(
            [file.file_id for attempt in self.attempts for file in attempt.files]
        )
        if ids:
            self.condemned |= set(
                await self.scene.store.files.condemn_files(*self.janitor, ids, min_age_ms=SWEEP_MIN_AGE_MS)
            )

    async def _sweeper(self) -> JobToken:
        lease = await self.scene.store.controller.hold_controller_lease(0, uuid.UUID(int=1), 1)
        await self.scene.store.jobs.schedule_jobs(lease.controller_epoch, [SWEEP_ORPHANS.schedule(int)])
        job = await self.scene.store.jobs.claim_job("test", [SWEEP_ORPHANS.name], 10**9)
        assert job is not None
        return job.token

    async def end(self) -> None:
        """All drivers are gone for a day: nothing is half-written, twice, or kept."""
        for attempt in self.attempts:
            if attempt.task is not None:
                attempt.task.cancel()
                await self._settle(attempt)
        self.seconds += 48 * HOUR
        await move_time(self.connection, self.seconds)
        while await self.scene.store.housekeeping.finish_bulk_writes():
            pass
        while await self.scene.store.housekeeping.prune_bulk_writes(10):
            pass
        await self.sweep()
        await self.check()

    async def check(self) -> None:
        found = await readable(self.connection)
        assert not await unaccounted(self.connection)
        assert not await staged_ids(self.connection)
        assert not await rows(self.connection, "SELECT * FROM bulk_write_chunks")
        written: dict[tuple[str, int], int] = {}
        for attempt in self.attempts:
            there = [file for file in attempt.files if file.file_id in found]
            assert len(there) in (0, len(attempt.files)), f"half-written: {attempt}"
            for file in there:
                assert found[file.file_id] == [(run.partition_key, run.records) for run in file.runs]
            if there:
                written[attempt.writer, attempt.batch_id] = written.get((attempt.writer, attempt.batch_id), 0) + 1
            orphans = {file.file_id for file in attempt.files} - found.keys()
            assert orphans <= self.condemned, "the sweeper deletes what was not committed"
        assert all(count == 1 for count in written.values()), f"written twice: {written}"
        assert not self.condemned & found.keys(), "a condemned file is read"
        for (writer, batch_id), success in self.succeeded.items():
            tried = [a for a in self.attempts if (a.writer, a.batch_id) == (writer, batch_id)]
            if success and all(attempt.files for attempt in tried):
                assert (writer, batch_id) in written, f"lost: writer={writer} batch_id={batch_id}"
        await self._check_feed()

    async def _check_feed(self) -> None:
        """Each change of a shard has a number, none is missing."""
        gaps = await rows(
            self.connection,
            "SELECT * FROM (SELECT shard, seq, lag(seq) OVER (PARTITION BY shard ORDER BY seq) AS before"
            " FROM commit_log) AS l WHERE before IS NOT NULL AND seq <> before + 1",
        )
        assert not gaps, gaps
