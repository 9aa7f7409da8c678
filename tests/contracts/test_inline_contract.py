"""Inline files in Postgres and in the model: the same random histories, step by step the same rows, slots and answers.

Fault model: commits are repeated, late, by an agent that is fenced, or of an id that is condemned; merges end late, and
swap twice or without their lease; log starts move, topics go, slots turn at any time. Only a step moves the clock, so
that each side judges by the same times.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from headrace.metastore.api.commit import FileCommit, FileStatus
from headrace.metastore.api.compaction import SwapOutcome
from headrace.metastore.api.inline import InlineRange, InlineSlotState, InlineState
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import is_inline, new_file_id, new_inline_file_id
from tests.contracts.segment_sides import Sides
from tests.inline_slots import inline_slot
from tests.metastore.commit_scenes import Scene, batch, condemn, file_of, open_scene
from tests.metastore.sessions import delete, rows, session
from tests.metastore.sql_sources import plant
from tests.model.inline_model import SLOTS
from tests.seeds import seeds

pytestmark = pytest.mark.requirement("X13")
SEEDS = (30,)
STEPS = 75
SEEN = (
    "inline",
    "refused",
    "repeated without a row",
    "into an empty slot",
    "swapped",
    "emptied",
    "not emptied",
    "missing",
)
"""What the everyday history must have had."""
LEASES_MS = (4_000, 60_000, 600_000)
PAUSES_S = (0.001, 0.001, 0.7, 3.0, 3.0, 11.0, 40.0)
LATE_S = (130.0, 1_000.0, 3_500.0)
WHOLE, FULL_AT_ONCE = 1 << 40, 1
"""Sizes at which a slot is full: never, and with its first file. Postgres counts pages, and the model bytes."""
STATES = "SELECT slot, state, to_ms(waits_since) FROM inline_slots ORDER BY slot"
BODIES = "SELECT slot, file_id, body FROM inline_files ORDER BY slot, file_id"


class SidesByTheClock(Sides):
    """Both sides, at times that only `advance` moves."""

    def __init__(self, postgres: PostgresMetastore, url: str, seed: int) -> None:
        super().__init__(postgres, url, seed)
        self.now_ms = self.clock.wall_ms()
        self.clock.wall_ms = lambda: self.now_ms  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Move both clocks."""
        self.now_ms += int(seconds * 1000)
        async with self.postgres.pool.connection() as raw:
            await raw.execute(
                "CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE"
                f" RETURN {self.now_ms}::bigint".encode()
            )


class History:
    """One run. `seen` counts what happened in it."""

    def __init__(self, sides: SidesByTheClock) -> None:
        self.sides, self.rng, self.model = sides, sides.rng, sides.model
        self.files: list[FileCommit] = []
        self.tokens: list[Any] = []
        self.seen = Counter[str]()

    async def run(self) -> Counter[str]:
        """Do random steps, and compare after each."""
        await self.begin()
        often = [self.commit] * 5 + [self.turn] * 6 + [self.move] * 3 + [self.read] * 2
        seldom = [self.repeat, self.repeat, self.wait, self.wait, self.remove, self.lease, self.end_lease]
        seldom += [self.refuse, self.misplace, self.come_late, self.replace_topic, self.ask]
        for number in range(STEPS):
            step = self.rng.choice(often + seldom)
            await self.sides.advance(self.rng.choice(PAUSES_S))
            await step()
            await self.compare(f"step={number} {step.__name__}")
        return self.seen

    async def begin(self) -> None:
        """Begin with slots that are empty in Postgres' files too."""
        async with session(self.sides.url) as raw:
            await raw.execute(b"TRUNCATE inline_files")
        await self.sides.begin()
        await self.sides.advance(0)
        await self.create()

    async def create(self) -> None:
        self.scene: Scene = await open_scene(self.sides.postgres, 3)
        topic = self.scene.topic
        self.model.topic_ids[topic.topic_number] = topic.topic_id
        assert self.model.create_topic(topic.topic_number, 3) == self.scene.keys
        self.model.register_agent(*self.scene.agent)

    async def compare(self, step: str) -> None:
        async with self.sides.postgres.pool.connection() as raw:  # a new session costs more than the question
            bodies, states = await rows(raw, BODIES), await rows(raw, STATES)
        held = [(inline_slot(f), f, body) for f, body in self.model.inline_files.items()]
        assert sorted(held) == bodies, f"{step}: rows"
        slots = [(n, s.state, s.waits_since_ms) for n, s in enumerate(self.model.inline_slots)]
        assert slots == states, f"{step}: slots"
        real, modelled = await self.sides.postgres.inline.inline_state(), await self.model.inline_state()
        assert comparable(modelled) == comparable(real), f"{step}: state"

    # -- commits

    def new_file(self, slot: int | None, *, age_ms: int = 0) -> FileCommit:
        """A file of some partitions; `slot`: of an inline one."""
        chosen = sorted(self.rng.sample(self.scene.keys, self.rng.randint(1, 3)))
        file, born_ms = file_of([batch(key) for key in chosen]), self.sides.now_ms - age_ms
        if slot is None:
            return replace(file, file_id=new_file_id(born_ms, self.rng))
        body = self.rng.randbytes(file.size)
        return replace(file, file_id=new_inline_file_id(born_ms, slot, self.rng), body=body)

    async def slot(self) -> int | None:
        """Return the one that takes files, or any: an agent may have seen it long ago."""
        if self.rng.random() < 0.1:
            return self.rng.randrange(SLOTS)
        slot = (await self.model.inline_state()).slot
        return None if slot < 0 else slot

    async def commit(self, *again: FileCommit) -> None:
        """Some files in a call, one of them perhaps for the bucket."""
        new = [self.new_file(self.rng.choice((slot := await self.slot(), slot, None))) for _ in range(2)]
        files = [*again, *new[: self.rng.randint(0 if again else 1, 2)]]
        self.rng.shuffle(files)
        real = await self.scene.commit(*files)
        assert await self.model.commit_files(*self.scene.agent, files) == real, "answers"
        self.files += [file for file in files if file not in again]
        self.seen["inline"] += sum(file.body is not None for file in files)

    async def repeat(self) -> None:
        """A call with a lost answer; the file may have been moved, and its slot emptied, long ago."""
        if inline := [file for file in self.files if file.body is not None]:
            file = self.rng.choice((inline[-1], self.rng.choice(inline)))
            self.seen["repeated without a row"] += file.file_id not in self.model.inline_files
            await self.commit(file)

    async def refuse(self) -> None:
        """Files that come too late, of an agent that is fenced, or of an id that is condemned: they are never live."""
        slot = await self.slot()
        old, fenced, condemned = (self.new_file(slot, age_ms=age) for age in (3_600_001, 0, 0))
        async with session(self.sides.url) as raw:
            await condemn(raw, condemned.file_id)
        self.model.condemn(condemned.file_id)
        for file in (old, condemned):
            real = await self.scene.commit(file)
            assert await self.model.commit_files(*self.scene.agent, [file]) == real, "answers"
            assert real[0].status in (FileStatus.TOO_OLD, FileStatus.CONDEMNED)
        stranger = self.scene.agent._replace(broker_epoch=self.scene.agent.broker_epoch + 1)
        real = await self.scene.commit(fenced, by=stranger)
        assert await self.model.commit_files(*stranger, [fenced]) == real, "answers"
        self.seen["refused"] += slot is not None

    async def misplace(self) -> None:
        """Files with an id that says another place."""
        inline, other = self.new_file(0), self.new_file(None)
        for wrong in (replace(inline, body=None), replace(other, body=b"x"), replace(inline, body=b"x")):
            for commit in (self.sides.postgres.commits.commit_files, self.model.commit_files):
                with pytest.raises(InvalidError):
                    await commit(*self.scene.agent, [wrong])

    async def come_late(self) -> None:
        """A file for a slot that was emptied after the agent saw it."""
        empty = [n for n, slot in enumerate(self.model.inline_slots) if slot.state is InlineSlotState.EMPTY]
        if empty:
            await self.commit(self.new_file(self.rng.choice(empty)))
            self.seen["into an empty slot"] += 1

    # -- what makes files dead

    async def move(self) -> None:
        """A merge of some extents, more or less: it may end in the middle, or swap twice."""
        tokens = await self.sides.claim("compact", self.rng.choice(LEASES_MS))
        assert tokens is not None
        self.tokens.append(tokens)
        some = self.sides.plan(tokens, self.scene.keys)
        if not some.segments or self.rng.random() < 0.2:
            return
        both = self.sides.both
        await both(lambda api, side: api.start_segments(tokens[side], some.file.file_id, 1, some.segments))
        if self.rng.random() < 0.2:
            await self.end_lease(tokens)
        for _ in range(self.rng.choice((1, 1, 2))):
            outcomes = await both(lambda api, side: api.swap_extents(tokens[side], some.file, some.swaps))
            self.seen["swapped"] += isinstance(outcomes, list) and outcomes.count(SwapOutcome.DONE)
        if self.rng.random() < 0.8:
            await self.end_lease(tokens)

    async def lease(self) -> None:
        """A merge that plans, and is slow."""
        self.tokens.append(await self.sides.claim("compact", self.rng.choice(LEASES_MS)))

    async def end_lease(self, tokens: Any = None) -> None:
        if tokens or self.tokens:
            ended = tokens or self.rng.choice(self.tokens)
            jobs = self.sides.postgres.jobs, self.model.jobs
            await self.sides.both(lambda _, side: jobs[side].finish_job(ended[side]))

    async def remove(self) -> None:
        """A log start moves."""
        key = self.rng.choice(self.scene.keys)
        if extents := self.model.partitions[key].visible_extents:
            target = LogStartTarget(key, self.rng.choice(extents).last_offset + 1)
            await self.sides.both(lambda api, _: api.move_log_starts([target], max_extents=1_000))

    async def replace_topic(self) -> None:
        """A topic goes, another one comes."""
        if self.rng.random() < 0.6:
            return
        await delete(self.sides.postgres, self.scene.topic.topic_id)
        self.model.delete_topic(self.scene.topic.topic_number)
        await self.create()
        while await self.sides.postgres.housekeeping.purge_deleted_partitions(1_000):
            self.model.purge(1_000)
        self.model.purge(1_000)

    # -- slots, and those who look

    async def turn(self) -> None:
        """Turn the slots; one with a file that is not moved stays."""
        full, age_ms = self.rng.choice((WHOLE, FULL_AT_ONCE)), self.rng.choice((0, 0, 5_000, 60_000))
        draining = [n for n, slot in enumerate(self.model.inline_slots) if slot.state is InlineSlotState.DRAINING]
        emptied = await self.sides.postgres.inline.rotate_inline_slots(full, age_ms)
        assert await self.model.rotate_inline_slots(full, age_ms) == emptied, f"emptied={emptied}"
        self.seen["emptied"] += emptied
        self.seen["not emptied"] += bool(draining) and not emptied
        self.seen["no slot"] += (await self.model.inline_state()).slot < 0

    async def read(self) -> None:
        """Ranges of some files: also beyond their end, of files without a row, and of those that never were."""
        ids = [file.file_id for file in self.files if is_inline(file.file_id)]
        ids = [*self.rng.sample(ids, min(len(ids), 6)), new_inline_file_id(0, 3, self.rng)]
        ranges = [InlineRange(f, self.rng.choice((0, 7, 150, 900)), self.rng.choice((0, 1, 150))) for f in ids]
        found = await self.sides.postgres.inline.read_inline(ranges)
        assert await self.model.read_inline(ranges) == found, "ranges"
        there = set(await self.sides.postgres.inline.inline_bytes(ids))
        assert set(await self.model.inline_bytes(ids)) == there, "which are there"
        self.seen["missing"] += found.count(None) > 1

    async def ask(self) -> None:
        for api in (self.sides.postgres.inline, self.model):
            await api.ask_inline_move()

    async def wait(self) -> None:
        await self.sides.advance(self.rng.choice(LATE_S))


def comparable(state: InlineState) -> InlineState:
    """Return the state without what only a server has; of sizes, whether there is anything."""
    return state._replace(held_bytes=bool(state.held_bytes), archive_fails=False, retained_wal_bytes=0)


async def history(metastore: PostgresMetastore, url: str, seed: int) -> Counter[str]:
    return await History(SidesByTheClock(metastore, url, seed)).run()


@pytest.mark.parametrize("seed", seeds(SEEDS, range(31, 60)))
async def test_postgres_and_the_model_agree(seed: int, metastore: PostgresMetastore, metastore_url: str) -> None:
    seen = await history(metastore, metastore_url, seed)
    if seed in SEEDS:
        assert all(seen[each] for each in SEEN), seen


BUGS = {
    "a repeated call stores its bytes again": (
        "commit_inline_files",
        "AND NOT EXISTS (SELECT FROM segment_files WHERE file_id = id)",
        "",
    ),
    "a slot with an unmoved file is emptied": (
        "rotate_inline_slots",
        "RETURN (SELECT i.file_id",
        "RETURN (SELECT NULL::uuid",
    ),
    "a late file is not drained": ("rotate_inline_slots", "AND first_inline_file(slot) IS NOT NULL", "AND false"),
    "plans of merges keep nothing": ("rotate_inline_slots", "least(wall_time(), inline_horizon())", "wall_time()"),
    "readers of a moment ago are forgotten": ("rotate_inline_slots", "interval '10 seconds'", "interval '0 seconds'"),
    "a range begins one byte late": ("read_inline", "FROM wanted.start + 1 FOR", "FROM wanted.start + 2 FOR"),
}
"""What is wrong -> (SQL file, right text, wrong text)."""
EVERYDAY_BUGS = list(BUGS)[:2]


@pytest.mark.parametrize("bug", seeds(EVERYDAY_BUGS, list(BUGS)[2:]))
async def test_a_planted_bug_is_seen(bug: str, metastore: PostgresMetastore, metastore_url: str) -> None:
    plant(metastore_url, *BUGS[bug])
    with pytest.raises(AssertionError, match=r"step=|emptied=|ranges"):
        await history(metastore, metastore_url, SEEDS[0])
