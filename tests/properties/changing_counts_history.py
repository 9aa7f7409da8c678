"""Random histories of bulk writes, and of doublings and halvings of their topic, on a real Postgres.

Fault model: drivers stage files, then decide and commit at any later time, or are gone; agents announce, double, set
boundaries, pause, merge, show and settle in between, each step at any time; housekeeping works now and then.
Invariant checked: a decided write is in the topic once and whole, another one never. What was decided before a topic
doubled, or before a child became an alias, is not appended there afterwards, and no old layout is decided. No write is
decided while a doubling is announced, and a topic doubles soon after its announcement, also if all drivers are gone.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.metastore.api.commit import BulkFile, BulkOutcome
from headrace.metastore.api.topics import PartitionState
from headrace.storage.errors import UnavailableError
from tests.metastore.bulk_scenes import bulk_file, readable, staged_ids
from tests.metastore.commit_scenes import batch
from tests.metastore.halving_scenes import BOUNDARY_QUIET_MS, TIMES, HalvingScene
from tests.metastore.sessions import rows

MINUTE_MS, ANNOUNCED_MS = 61_000, 120_000
PARTITIONS_MOST = 8
IN_CHANGE = {PartitionState.PAUSED, PartitionState.ALIAS, PartitionState.MERGES}


@dataclass
class Write:
    """A driver's only attempt, laid out for `count` partitions. `changes`: how many there were when it was decided."""

    writer: str
    attempt: uuid.UUID
    files: list[BulkFile]
    count: int
    keys: set[int]
    is_decided: bool = False
    changes: int = 0
    next_chunk: int = 0


class ChangingCounts:
    """One history; `run`, then everything is checked."""

    def __init__(self, scene: HalvingScene, seed: int) -> None:
        self.scene, self.rng = scene, random.Random(seed)
        self.writes: list[Write] = []
        self.cuts: list[dict[int, int]] = []
        """For each change: where the partitions ended that take nothing any more that was decided before it."""
        self.announced_until = 0
        self.is_halving = self.is_merged = False

    async def run(self, steps: int) -> None:
        actions = {self.stage: 5, self.decide: 6, self.commit: 4, self.housekeep: 1, self.announce: 1, self.double: 3,
                   self.set_boundaries: 3, self.halve: 6, self.agent_commits: 2}  # fmt: skip
        for _ in range(steps):
            (action,) = self.rng.choices(list(actions), list(actions.values()))
            await action()
        await self.end()

    # -- drivers

    async def stage(self) -> None:
        """Tasks store files, and the driver stages them."""
        topic = await self.scene.image()
        count, number = topic.ordered_partitions.undeleted, len(self.writes)
        keys = [key for index in range(count) if (key := topic.key(index)) is not None]
        now_ms = await self.scene.store.commits.database_ms()
        files = [
            bulk_file(now_ms, self.rng, self.rng.sample(keys, self.rng.randint(1, min(3, count))), term_hours=200)
            for _ in range(self.rng.randint(1, 3))
        ]
        attempt = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        for chunk, file in enumerate(files):
            await self.scene.store.commits.stage_bulk_chunk(attempt, chunk, [file])
        placed = {run.partition_key for file in files for run in file.runs}
        self.writes.append(Write(f"writer-{number}", attempt, files, count, placed))

    async def decide(self) -> None:
        """One that was laid out a short time ago, or a long one."""
        waiting = [write for write in self.writes if not write.is_decided]
        if waiting:
            write = waiting[-1] if self.rng.random() < 0.7 else self.rng.choice(waiting)
            await self._decide(write)

    async def _decide(self, write: Write) -> None:
        answer = await self.scene.store.commits.decide_bulk_write(
            write.writer, 0, write.attempt, len(write.files), {self.scene.topic.topic_number: write.count}
        )
        is_announced = self.scene.ahead_ms < self.announced_until
        topic = await self.scene.image()
        if answer.outcome is BulkOutcome.DECIDED:
            assert not is_announced, "decided while a doubling is announced"
            assert topic.ordered_partitions.undeleted == write.count, "an old layout is decided"
            states = await self.scene.states()
            assert not IN_CHANGE & {states[key & 0xFFFFFF] for key in write.keys}, "decided in the middle of a halving"
            write.is_decided, write.changes = True, len(self.cuts)
            return
        assert answer.outcome is BulkOutcome.TOPIC_CHANGES, answer
        has_changed = topic.ordered_partitions.undeleted != write.count
        is_split = any(split.boundary is None for split in topic.splits.values())
        assert is_announced or has_changed or is_split or self.is_halving, "refused without a reason"

    async def commit(self) -> None:
        """A driver commits its next chunk, or one that it has committed."""
        open_ = [write for write in self.writes if write.is_decided]
        if open_:
            write = self.rng.choice(open_)
            chunk = self.rng.randrange(len(write.files)) if self.rng.random() < 0.2 else write.next_chunk
            write.next_chunk, _ = await self.scene.store.commits.commit_bulk_chunk(write.writer, write.attempt, chunk)

    async def housekeep(self) -> None:
        """Completes what had no progress for a minute."""
        await self.scene.later(MINUTE_MS)
        while await self.scene.store.housekeeping.finish_bulk_writes():
            pass

    async def agent_commits(self) -> None:
        """Records without a key."""
        await self.scene.image()
        await self.scene.outcomes(batch(self.scene.keys[0], producer_id=-1, producer_epoch=-1))

    # -- the topic

    async def announce(self) -> None:
        """Do the same as an agent that is gone afterwards."""
        if not await self._is_changing():
            await self._announce()

    async def _announce(self) -> int:
        left = await self.scene.store.topics.announce_counts([self.scene.topic.topic_id])
        self.announced_until = self.scene.ahead_ms + ANNOUNCED_MS
        return left

    async def double(self) -> None:
        """Double with an announcement, or as an agent of another version without."""
        topic = await self.scene.image()
        if await self._is_changing() or topic.ordered_partitions.undeleted >= PARTITIONS_MOST:
            return
        if self.rng.random() < 0.8:
            for _ in range(1 + sum(len(write.files) for write in self.writes)):
                if not await self._announce():
                    break
            else:
                raise AssertionError("decided writes are never complete")
        ends = await self._ends(self.scene.keys)
        left = await self._unfinished(self.scene.keys)
        try:
            await self.scene.double(sets_boundaries=False)
        except UnavailableError:
            assert left, "refused without a reason"
            return
        self.cuts.append(ends)
        self.announced_until = 0

    async def set_boundaries(self) -> None:
        """Do the same as the controller does when no moved key has come for long enough."""
        await self.scene.later(BOUNDARY_QUIET_MS)
        for split in await self.scene.store.topics.quiet_splits(99):
            head = await self.scene.store.cluster.metadata_head()
            await self.scene.store.topics.set_split_boundary(self.scene.controller_epoch, head, split)

    async def halve(self) -> None:
        """The next step, or a step back."""
        topic = await self.scene.image()
        if not self.is_halving:
            if topic.ordered_partitions.undeleted > 2 and not await self._is_changing():
                await self.scene.begin()
                self.is_halving = True
            return
        if self.is_merged:
            await self._finish_halving()
            return
        state = await self.scene.state()
        children = [pair.child_key for pair in state.pairs]
        if not await self.scene.pause() and self.rng.random() < 0.2:
            await self.scene.store.topics.resume_children(self.scene.controller_epoch, children)
            return
        ends, left = await self._ends(children), await self._unfinished(children)
        if await self.scene.merge():
            self.is_merged = True
            self.cuts.append(ends)
        else:
            assert left, "not merged without a reason"

    async def _finish_halving(self) -> None:
        if (await self.scene.state()).shown_ms is None:
            await self.scene.later(TIMES.show_after_ms)
            await self.scene.show()
            return
        await self.scene.later(TIMES.settle_after_ms)
        if await self.scene.settle():
            self.is_halving = self.is_merged = False

    async def _is_changing(self) -> bool:
        topic = await self.scene.image()
        return self.is_halving or any(split.boundary is None for split in topic.splits.values())

    async def _ends(self, keys: Iterable[int]) -> dict[int, int]:
        found = await rows(
            self.scene.raw,
            "SELECT partition_key, max(high_watermark) FROM partition_heads WHERE partition_key = ANY (%s) GROUP BY 1",
            list(keys),
        )
        return {int(key): int(end) for key, end in found}

    async def _unfinished(self, keys: Iterable[int]) -> bool:
        """Return whether a decided write has a chunk left for one of these partitions, by the tables."""
        found = await rows(
            self.scene.raw,
            "SELECT count(*) FROM bulk_writes JOIN bulk_write_chunks USING (attempt) WHERE run_key && %s::bigint[]",
            list(keys),
        )
        return bool(found[0][0])

    # -- the end

    async def end(self) -> None:
        """Drivers are gone; a write that is laid out now is decided as soon as the topic is as it was."""
        await self.housekeep()
        while self.is_halving:
            await self.halve()
        await self.set_boundaries()
        await self.scene.later(ANNOUNCED_MS)
        await self.stage()
        await self._decide(self.writes[-1])
        assert self.writes[-1].is_decided, "refused without end"
        await self.housekeep()
        await self.check()

    async def check(self) -> None:
        found = await readable(self.scene.raw)
        assert not await staged_ids(self.scene.raw)
        for write in self.writes:
            for file in write.files:
                expected = [(run.partition_key, run.records) for run in file.runs] if write.is_decided else None
                assert found.get(file.file_id) == expected, f"half-written, or written without a decision: {write}"
        by_file = {file.file_id: write for write in self.writes for file in write.files}
        extents = await rows(self.scene.raw, "SELECT file_id, partition_key, base_offset FROM extents")
        for file_id, key, base in extents:
            if (by := by_file.get(file_id)) is not None:
                for cut in self.cuts[by.changes :]:
                    assert base < cut.get(key, base + 1), f"behind a change of the topic: {by} key={key} base={base}"
