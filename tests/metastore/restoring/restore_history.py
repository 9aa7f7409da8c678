"""Random histories of one topic that is deleted and restored, and of logs that are cut and restored, on real Postgres.

Fault model: housekeeping and janitor run between any two calls, in chunks of any size; a restore is given up half-way,
or comes after its time; transactions are open, go on and end at any time; another topic has extents in the same files.
After each step: what a reader sees is what was written, sums are right, no extent is in a file that may be deleted, and
an agent that follows the feed knows nothing else. What was removed within the last hour always comes back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.agent.fetch.index.index import TailIndex
from headrace.metastore.api.commit import BatchOutcome, StagedBatch
from headrace.metastore.api.read import ExtentQuery, PartitionExtents
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.topic_restore import newest_of, restore_deleted, restore_removed
from headrace.storage.errors import NotFoundError
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.restoring.restore_scenes import HOUR_MS, delete_restorably, keep_files
from tests.metastore.sessions import Session, claim, move_time
from tests.metastore.transactions.transaction_scenes import RECORDS, Producer

ALL = 1 << 40
PARTITIONS = 2
STEPS = 30
MINUTE_MS = 60_000


@dataclass
class MovedScene(Scene):
    """A scene with a clock that is ahead of the machine's."""

    moved_ms: int = 0
    beside: int = 0
    """A partition of another topic that has a batch in each file; 0: none."""

    async def outcomes(self, *batches: StagedBatch) -> list[tuple[BatchOutcome, int]]:
        others = [batch(self.beside)] if self.beside else []
        (answer,) = await self.commit(file_of([*batches, *others], age_ms=-self.moved_ms))
        return [(found.outcome, found.base_offset) for found in answer.batches[: len(batches)]]


@dataclass
class Written:
    """A batch, or the marker of a transaction: `owner` is the transaction, None for other batches."""

    base: int
    last: int
    owner: object = None
    is_marker: bool = False


@dataclass
class Log:
    """What was written to a partition, and what its log start has removed: (first offset, end, when)."""

    written: list[Written] = field(default_factory=list)
    start: int = 0
    removed: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.written[-1].last + 1 if self.written else 0


class History:
    """One history; `run` raises AssertionError where a promise is broken."""

    def __init__(self, store: PostgresMetastore, raw: Session, seed: int) -> None:
        self.store, self.raw, self.rng = store, raw, random.Random(seed)
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.aborted: dict[object, bool] = {}
        """Ended transactions: whether they were aborted."""
        self.open: dict[str, object] = {}
        """By transactional id the transaction that is open."""
        self.lost: set[object] = set()
        """Open when the topic was deleted, and ended since."""
        self.deleted_at: int | None = None
        self.index: TailIndex | None = None
        self.is_over = False

    async def run(self) -> None:
        """A whole history."""
        beside, scene = await open_scene(self.store), await open_scene(self.store, PARTITIONS)
        self.scene = MovedScene(self.store, scene.agent, scene.topic, scene.keys, 0, beside.keys[0])
        await keep_files(self.scene)
        self.producers = [Producer(self.scene, f"copy-{n}", bumps=bool(n)) for n in range(2)]
        for producer in self.producers:
            await producer.init()
        await self._check()
        usual = [self.write, self.write, self.write, self.transact, self.transact, self.end, self.cut, self.bring_back]
        usual += [self.delete, self.delete, self.keep_house, self.janitor, self.wait]
        gone = [self.keep_house, self.keep_house, self.janitor, self.wait, self.end, self.transact, self.half]
        gone += [self.restore, self.restore, self.restore]
        for _ in range(STEPS):
            step = self.rng.choice(usual if self.deleted_at is None else gone)
            await step()
            if self.is_over:
                return
            await self._check()

    # -- what clients do

    async def write(self) -> None:
        """One batch without a transaction."""
        n = self.rng.randrange(PARTITIONS)
        await self._append(n, None, batch(self.scene.keys[n], records=RECORDS))

    async def transact(self) -> None:
        """One batch of a transaction, which may begin."""
        producer, n = self.rng.choice(self.producers), self.rng.randrange(PARTITIONS)
        if self.deleted_at is not None:
            return
        owner = self.open.setdefault(producer.transactional_id, object())
        if not producer.bumps:
            await producer.add(n)
        await self._append(n, owner, producer.batch(n))
        producer.sequences[n] = producer.sequences.get(n, 0) + RECORDS

    async def _append(self, n: int, owner: object, wanted: StagedBatch) -> None:
        if self.deleted_at is None:
            found = await self.scene.outcomes(wanted)
            log = self.logs[n]
            assert found == [(BatchOutcome.APPENDED, log.end)], found
            log.written.append(Written(log.end, log.end + RECORDS - 1, owner))

    async def end(self) -> None:
        """The end of a transaction."""
        producer = self.rng.choice(self.producers)
        if (owner := self.open.pop(producer.transactional_id, None)) is None:
            return
        commits = self.rng.random() < 0.5
        await producer.end(commits=commits)
        self.aborted[owner] = not commits
        if self.deleted_at is not None:
            self.lost.add(owner)
            return
        for log in self.logs:
            if any(one.owner is owner for one in log.written):
                log.written.append(Written(log.end, log.end, owner, is_marker=True))

    # -- what removes

    async def cut(self) -> None:
        """Move a log start."""
        n = self.rng.randrange(PARTITIONS)
        log = self.logs[n]
        offset, most = self.rng.randint(log.start, log.end), self.rng.choice((1, 3, 100))
        await self.store.retention.move_log_starts([LogStartTarget(self.scene.keys[n], offset)], max_extents=most)
        if offset > log.start:
            log.removed.append((log.start, offset, self.scene.moved_ms))
            log.start = offset

    async def delete(self) -> None:
        """Delete the topic."""
        await delete_restorably(self.scene)
        self.deleted_at = self.scene.moved_ms

    async def keep_house(self) -> None:
        """Some calls of housekeeping."""
        for _ in range(self.rng.randint(1, 4)):
            await self.rng.choice(
                (self.store.housekeeping.purge_deleted_partitions, self.store.housekeeping.prune_removed_extents)
            )(self.rng.choice((1, 2, 100)))

    async def janitor(self) -> None:
        """Take dead files, and delete them."""
        await self.raw.execute("DELETE FROM jobs")
        job = await claim(self.store, "delete", lease_ms=HOUR_MS)
        life = (await self.store.files.janitor_state()).incarnation_id
        dead = await self.store.files.take_dead_files(job.token, life, limit=100)
        if self.rng.random() < 0.5:
            await self.store.files.drop_files(job.token, [file.file_id for file in dead])

    async def wait(self) -> None:
        """Let time pass."""
        self.scene.moved_ms += self.rng.choice((5, 20, 50)) * MINUTE_MS
        await move_time(self.raw, self.scene.moved_ms / 1000)

    # -- what brings back

    async def half(self) -> None:
        """A restore that is given up."""
        await self.store.topics.revive_topic(self.scene.topic.topic_number, limit=self.rng.choice((1, 2)))

    async def restore(self) -> None:
        """Restore the topic; if its time has passed, the history is over."""
        assert self.deleted_at is not None
        is_in_time = self.scene.moved_ms - self.deleted_at < HOUR_MS
        try:
            topic = newest_of(
                await self.store.topics.restorable_topics(), self.scene.topic.name, self.scene.topic.topic_id
            )
            await restore_deleted(self.store, topic, topic.name, _quiet)
        except NotFoundError:
            if is_in_time:
                raise
            self.is_over = True
            return
        self.deleted_at = None
        for log in self.logs:
            for owner in dict.fromkeys(one.owner for one in list(log.written) if one.owner in self.lost):
                log.written.append(Written(log.end, log.end, owner, is_marker=True))
        for owner in self.lost:
            self.aborted[owner] = True
        self.lost.clear()

    async def bring_back(self) -> None:
        """Move a log start back."""
        n = self.rng.randrange(PARTITIONS)
        log, key = self.logs[n], self.scene.keys[n]
        wanted = self.rng.randint(0, log.start)
        (done,) = await restore_removed(self.store.topics, {key: wanted}, _quiet)
        now = self.scene.moved_ms
        due = [first for first, _, at in log.removed if now - at < HOUR_MS]
        promised = max(min(due, default=log.start), wanted)
        assert wanted <= done.log_start_offset <= promised, (wanted, done, log.removed)
        log.start = done.log_start_offset
        log.removed = [(first, min(end, log.start), at) for first, end, at in log.removed if first < log.start]

    # -- what must hold

    async def _check(self) -> None:
        if wrong := await unaccounted(self.raw):
            raise AssertionError(f"sums or rows are wrong: {wrong}")
        await self._follow()
        found = await self.store.index.find_extents([ExtentQuery(key, 0, ALL) for key in self.scene.keys])
        for log, one in zip(self.logs, found, strict=True):
            assert one.known is (self.deleted_at is None)
            if one.known:
                self._check_log(log, one)

    def _check_log(self, log: Log, found: PartitionExtents) -> None:
        assert (found.log_start_offset, found.high_watermark) == (log.start, log.end)
        wanted = [one for one in log.written if one.last >= log.start]
        assert [(e.base_offset, e.last_offset) for e in found.extents] == [(one.base, one.last) for one in wanted]
        assert [e.file_id is None for e in found.extents] == [one.is_marker for one in wanted]
        seen = [
            e.base_offset
            for e, one in zip(found.extents, wanted, strict=True)
            if not one.is_marker
            and e.last_offset < found.last_stable_offset
            and not self._is_skipped(e.base_offset, found, log)
        ]
        stable = min((one.base for one in log.written if one.owner in self.open.values()), default=log.end)
        shown = [
            one.base
            for one in wanted
            if not one.is_marker and one.last < stable and not (one.owner is not None and self.aborted[one.owner])
        ]
        assert seen == shown, f"read_committed: seen={seen} wanted={shown}"
        self._check_agent(found, [one.base for one in wanted])

    def _is_skipped(self, base: int, found: PartitionExtents, log: Log) -> bool:
        """Return whether a reader skips the batch: it is in an aborted transaction of its producer."""
        (one,) = [each for each in log.written if each.base == base]
        if one.owner is None:
            return False
        ends = [each.base for each in log.written if each.is_marker and each.owner is one.owner]
        return any(a.first_offset <= base <= a.last_offset and a.last_offset in ends for a in found.aborted)

    async def _follow(self) -> None:
        """An agent that hears all that the feed says."""
        if self.index is None:
            self.index = TailIndex(self.store.commit_shards)
            self.index.apply(await self.store.index.poll_feed({}))
        while (page := await self.store.index.poll_feed(self.index.heads)).rows:
            self.index.apply(page)

    def _check_agent(self, found: PartitionExtents, bases: Sequence[int]) -> None:
        assert self.index is not None
        key = found.partition_key
        known = self.index.log_start_offset(key)
        assert known in (-1, found.log_start_offset), f"an agent knows another log start: {known}"
        for base in bases:
            looked = self.index.look(key, base, ALL) or self.index.look_back(key, base, ALL)
            if looked is not None:
                there = [e for e in found.extents if e.base_offset >= base]
                assert list(looked.extents) == there[: len(looked.extents)], "an agent reads something else"
        generation, changes = self.index.generation, self.index.history.changes
        if self.index.observe(found, generation):
            stable = [e for e in found.extents if e.last_offset < found.last_stable_offset]
            self.index.history.keep(key, stable, changes, found.aborted)


def _quiet(what: str, done: int, total: int) -> None:
    """No progress is shown."""
