"""One history of commits, told to the reference model and to Postgres; every answer must be the same.

Place: run by test_commit_machine.py (must pass) and test_commit_bugs.py (must fail, on planted bugs).
Fault model: anything that producers, agents and sweepers may do, in any order, but one call at a time
(tests/metastore/test_commit_concurrency.py has the rest). All examples share one database: each makes
separate topics and agents, so what is left of others is history, as in production.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.config.settings import Settings
from headrace.metastore.api.commit import FileAnswer, FileCommit, StagedBatch
from headrace.metastore.api.read import Extent, ExtentQuery, FeedKind, FeedRow, OffsetQuery
from headrace.metastore.api.retention import LogStartTarget, OldestQuery
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id
from tests.kept_databases import Database, close, continued
from tests.metastore.byte_sums import unaccounted
from tests.metastore.sessions import create, delete, join, new_topic
from tests.model.metastore_model import ModelMetastore
from tests.model.partition_model import ModelPartition
from tests.properties.commit_intents import FORGOTTEN, HANDED_OUT_LATE, YOUNG, Intent, Sent, births, calls, intents

T = TypeVar("T")

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


class CommitMachine(RuleBasedStateMachine):
    """Drives both; `store` is used as long as `runner`, over many examples."""

    def __init__(self, runner: asyncio.Runner, store: PostgresMetastore) -> None:
        super().__init__()
        self.runner = runner
        self.store = store
        self.model = ModelMetastore(shards=store.commit_shards)
        self.rng = random.Random(0)
        self.topics: dict[int, uuid.UUID] = {}
        self.names: dict[int, str] = {}
        self.keys: list[int] = []
        self.sent: dict[tuple[int, int], Sent] = {}
        self.files: list[FileCommit] = []
        self.view: dict[int, list[Extent]] = defaultdict(list)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the pool's loop."""
        return self.runner.get_loop().run_until_complete(work)

    def sql(self, text: str, **parameters: Any) -> None:
        """Do what other parts of the metastore will do to these tables."""

        async def execute() -> None:
            async with self.store.pool.connection() as connection:
                await connection.execute(text.encode(), parameters)

        self.run(execute())

    # -- set-up

    @initialize()
    def begin(self) -> None:
        self.agent = self.run(join(self.store))
        self.model.register_agent(*self.agent)
        page = self.run(self.store.index.poll_feed({}))
        self.origin = page.heads
        self.positions = dict(page.heads)
        for first, age_ms in ((YOUNG, 0), (FORGOTTEN, 2 * DAY_MS), (HANDED_OUT_LATE, DAY_MS + HOUR_MS // 6)):
            self.model.producer_id_blocks.append((range(first, first + 10), self.model.clock.wall_ms() - age_ms))
            self.sql(
                "INSERT INTO producer_id_blocks SELECT %(first)s, %(first)s + 9,"
                " clock_timestamp() - %(age)s * interval '1 ms'"
                " ON CONFLICT (first_id) DO UPDATE SET leased_at = EXCLUDED.leased_at",
                first=first,
                age=age_ms,
            )
        self.make_topic(2, is_old=True)

    # -- topics and agents

    @rule(partitions=st.integers(1, 3), is_old=st.booleans())
    @precondition(lambda self: len(self.topics) < 3)
    def make_topic(self, partitions: int, is_old: bool) -> None:
        keys = self.create_topic(f"topic-{uuid.uuid4()}", partitions)
        if is_old:
            for key in keys:
                self.model.partitions[key].created_ms -= 2 * DAY_MS
            self.sql(
                "UPDATE partitions SET created_at = created_at - interval '2 days'"
                " WHERE partition_key = ANY (%(keys)s)",
                keys=keys,
            )

    def create_topic(self, name: str, partitions: int) -> list[int]:
        """Create it in both; its partitions' keys."""
        topic = new_topic(name, partitions)
        image = self.run(create(self.store, topic))
        number = image.topics_by_id[topic.topic_id].topic_number
        self.topics[number], self.names[number] = topic.topic_id, name
        keys = self.model.create_topic(number, partitions, name)
        self.keys += keys
        return keys

    @rule(which=st.integers(0, 2))
    @precondition(lambda self: len(self.topics) > 1)
    def delete_topic(self, which: int) -> None:
        self.delete(sorted(self.topics)[which % len(self.topics)])

    def delete(self, number: int) -> None:
        """Delete the topic in both."""
        self.run(delete(self.store, self.topics.pop(number)))
        self.model.delete_topic(number)

    @rule(which=st.integers(0, 5))
    def raise_leader_epoch(self, which: int) -> None:
        key = self.live_key(which)
        self.model.set_leader_epoch(key, self.model.partitions[key].leader_epoch + 1)
        self.sql("UPDATE partitions SET leader_epoch = leader_epoch + 1 WHERE partition_key = %(key)s", key=key)

    @rule(which=st.integers(0, 5))
    def mark_partition(self, which: int) -> None:
        """It takes no new records from now on; a few are enough."""
        key = self.live_key(which)
        if sum(partition.is_marked for partition in self.model.partitions.values()) == 0:
            self.model.mark_partition(key)
            self.sql("UPDATE partitions SET state = 1 WHERE partition_key = %(key)s", key=key)

    @rule(
        wanted=st.lists(st.tuples(st.integers(0, 5), st.floats(-0.2, 1.2) | st.none()), min_size=1, max_size=3),
        most=st.integers(1, 3) | st.just(1000),
    )
    def move_log_starts(self, wanted: list[tuple[int, float | None]], most: int) -> None:
        """Somewhere between the log start and the high watermark, or a little beyond; None goes for all."""
        targets = {}
        for which, portion in wanted:
            key = self.keys[which % len(self.keys)]
            partition = self.model.partitions.get(key, ModelPartition())
            start, end = partition.log_start_offset, partition.high_watermark
            targets[key] = -1 if portion is None else max(start + round(portion * (end - start)), 0)
        asked = [LogStartTarget(*target) for target in targets.items()]
        expected = self.run(self.model.move_log_starts(asked, max_extents=most))
        assert self.run(self.store.retention.move_log_starts(asked, max_extents=most)) == expected

    @rule()
    def fence_agent(self) -> None:
        """Its commits are refused from now on, but for what is committed already; then it comes back."""
        file = self.new_file([Intent(0, -1, "next", 0, 1, 1, False, "nothing")])
        self.model.fence_agent(self.agent.node_id)
        self.run(self.store.cluster.unregister_agent(*self.agent))
        self.commit([file, *self.files[-1:]])
        self.agent = self.run(join(self.store, self.agent.node_id))
        self.model.register_agent(*self.agent)
        self.commit([file])

    @rule()
    def expire_producers(self) -> None:
        self.model.expire_producers()
        self.sql("DELETE FROM producer_state WHERE partition_key = ANY (%(keys)s)", keys=self.keys)

    @rule(life=st.sampled_from([-1, 0, 9]))
    def forget_what_is_whole(self, life: int) -> None:
        """Do the same as if what is there were from before a migration (-1), all of this life, or of another one."""
        for key in self.keys:
            for state in self.model.partitions.get(key, ModelPartition()).producers.values():
                state.contiguous_life = life
        self.sql(
            "UPDATE producer_state SET contiguous_life = %(life)s WHERE partition_key = ANY (%(keys)s)",
            life=life,
            keys=self.keys,
        )

    def live_key(self, which: int) -> int:
        keys = sorted(self.model.partitions)
        return keys[which % len(keys)]

    # -- commits

    @rule(call=calls, birth=births)
    def commit_new(self, call: list[list[Intent]], birth: str) -> None:
        self.synchronise_producers()
        self.commit([self.new_file(batches, birth) for batches in call])

    @rule(
        partition=st.integers(0, 3),
        producer=st.sampled_from([YOUNG, FORGOTTEN]),
        records=st.lists(st.integers(1, 3), min_size=4, max_size=8),
        per_call=st.integers(1, 8),
        bump=st.integers(1, 8),
        again=st.sampled_from(["repeat", "ghost"]),
        back=st.integers(0, 6),
        between=st.booleans(),
    )
    def commit_stream(
        self,
        partition: int,
        producer: int,
        records: list[int],
        per_call: int,
        bump: int,
        again: str,
        back: int,
        between: bool,
    ) -> None:
        """A producer continues as it should, over the end of the sequences or into a new epoch, and repeats a batch."""
        self.synchronise_producers()
        moves = ["wrap" if producer == FORGOTTEN else "next", *["next"] * 7]
        moves[bump:] = ["bump", *moves[bump + 1 :]] if bump < 8 else []

        def intend(move: str, count: int) -> Intent:
            return Intent(partition, producer, move, back, count, 1, False, "nothing")

        stream = [intend(move, count) for move, count in zip(moves, records, strict=False)]
        for first in range(0, len(stream), per_call):
            self.commit([self.new_file(stream[first : first + per_call])])
        last = [intend("next", 1), intend(again, 1), intend("next", 1)]
        self.commit([self.new_file(last if between else last[1:2])])

    @rule(call=calls, which=st.integers(0, 20), first=st.booleans())
    @precondition(lambda self: self.files)
    def commit_again(self, call: list[list[Intent]], which: int, first: bool) -> None:
        """A file with a lost response, alone or in a group with new ones."""
        self.synchronise_producers()
        again = self.files[which % len(self.files)]
        others = [self.new_file(batches) for batches in call[1:]]
        self.commit([again, *others] if first else [*others, again])

    @rule(batches=st.lists(intents, min_size=1, max_size=3), sweeper_first=st.booleans())
    def condemn(self, batches: list[Intent], sweeper_first: bool) -> None:
        """The sweeper takes a file for garbage, before or after its commit."""
        file = self.new_file(batches)
        if not sweeper_first:
            self.commit([file])
        self.model.condemn(file.file_id)
        self.sql(
            "INSERT INTO segment_files VALUES (%(id)s, 1, 0, 0, clock_timestamp()) ON CONFLICT DO NOTHING",
            id=file.file_id,
        )
        self.commit([file, self.new_file(batches)])

    def commit(self, files: Sequence[FileCommit]) -> list[FileAnswer]:
        """Commit through both."""
        self.model.metadata_offset = self.run(
            self.store.cluster.metadata_head()
        )  # what a batch out of order is answered with
        expected = self.run(self.model.commit_files(*self.agent, files))
        found = self.run(self.store.commits.commit_files(*self.agent, files))
        assert found == expected
        self.files += [file for file in files if file not in self.files]
        return found

    def new_file(self, batches: list[Intent], birth: str = "now") -> FileCommit:
        """A file that carries out the intents."""
        born_ms = self.model.clock.wall_ms() + {"now": 0, "old": -3_700_000, "future": 700_000}[birth]
        staged: list[StagedBatch] = []
        end = 0
        for intent in batches:
            position = end + (5 if intent.gap else 0)
            staged.append(self.stage(intent, position))
            end = position + staged[-1].length
        return FileCommit(new_file_id(born_ms, self.rng), end + 100, staged)

    def stage(self, intent: Intent, position: int) -> StagedBatch:
        key = self.keys[intent.partition % len(self.keys)]
        epoch, sequence, records = intent.next_batch(self.sent.setdefault((key, intent.producer), Sent(0, 0, [])))
        partition = self.model.partitions.get(key)
        leader_epoch = partition.leader_epoch if partition else 0
        count = self.model.partition_counts.get(key >> 24, 1)
        return StagedBatch(
            partition_key=key,
            position=position,
            length=10 + records,
            record_count=records,
            max_timestamp=intent.timestamp,
            producer_id=intent.producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            leader_epoch={"right": leader_epoch, "epoch": leader_epoch + 1}.get(intent.expect, -1),
            partition_count={"right": count, "count": count + 1}.get(intent.expect, -1),
        )

    def synchronise_producers(self) -> None:
        """Producers learn where they are from the answers that they got."""
        for (key, producer), sent in self.sent.items():
            partition = self.model.partitions.get(key)
            state = partition.producers.get(producer) if partition else None
            sent.epoch = state.epoch if state else 0
            sent.next_sequence = state.next_sequence if state else 0

    # -- reads

    @rule(asked=st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 40), st.integers(0, 60)), min_size=1, max_size=4))
    def find_extents(self, asked: list[tuple[int, int, int]]) -> None:
        queries = [ExtentQuery(self.keys[which % len(self.keys)], offset, size) for which, offset, size in asked]
        expected = self.run(self.model.find_extents(queries))
        assert self.run(self.store.index.find_extents(queries)) == expected

    @rule(asked=st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 13)), min_size=1, max_size=4))
    def list_offsets(self, asked: list[tuple[int, int]]) -> None:
        queries = [OffsetQuery(self.keys[which % len(self.keys)], timestamp) for which, timestamp in asked]
        expected = self.run(self.model.list_offsets(queries))
        assert self.run(self.store.index.list_offsets(queries)) == expected

    @rule(asked=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4))
    def oldest_extents(self, asked: list[tuple[int, int]]) -> None:
        queries = [OldestQuery(self.keys[which % len(self.keys)], most) for which, most in asked]
        _, expected = self.run(self.model.oldest_extents(queries))
        _, found = self.run(self.store.retention.oldest_extents(queries))
        for answer in (*expected, *found):  # the two commit at different times
            answer.extents[:] = [extent._replace(newest_ms=min(extent.newest_ms, 10**12)) for extent in answer.extents]
        assert found == expected

    @rule()
    def describe(self) -> None:
        expected = self.run(self.model.partition_sizes(self.keys))
        assert self.run(self.store.reports.partition_sizes(self.keys)) == expected
        producers = self.run(self.model.describe_producers(self.keys))
        assert self.run(self.store.reports.describe_producers(self.keys)) == producers

    @invariant()
    def the_feed_tells_everything(self) -> None:
        """Row for row what the model says, and folded into a view, what the primary would answer."""
        if not self.keys:
            return
        modelled = {shard: seq - self.origin[shard] for shard, seq in self.positions.items()}
        expected = self.run(self.model.poll_feed(modelled))
        page = self.run(self.store.index.poll_feed(self.positions))
        assert page.lost_shards == expected.lost_shards == []
        assert page.rows == [_renumbered(row, self.origin[row.shard]) for row in expected.rows]
        for row in page.rows:
            self.positions[row.shard] = row.seq
            self.fold(row)
        everything = [ExtentQuery(key, 0, 1 << 40) for key in self.keys]
        for answer in self.run(self.store.index.find_extents(everything)):
            assert self.view[answer.partition_key] == answer.extents

    def fold(self, row: FeedRow) -> None:
        """Fold a row as an index does."""
        match row.kind:
            case FeedKind.COMMIT:
                for extent in row.extents:
                    self.view[extent.partition_key].append(extent)
            case FeedKind.LOG_START:
                for key, offset in row.log_starts:
                    self.view[key] = [extent for extent in self.view[key] if extent.last_offset >= offset]
            case FeedKind.TOPIC_DELETED:
                for key in row.deleted_keys:
                    self.view[key] = []

    def teardown(self) -> None:
        """Bytes add up, also once what deleted topics left is gone."""

        async def sums() -> list[tuple[Any, ...]]:
            while await self.store.housekeeping.purge_deleted_partitions(20):
                pass
            async with self.store.pool.connection() as connection:
                return await unaccounted(connection)

        found = self.run(sums())
        assert found == [], found


@contextmanager
def machine_on(at: str | Database, kind: type[CommitMachine] = CommitMachine) -> Iterator[type[CommitMachine]]:
    """A class of machines of this kind on one migrated database, with one connection. `at`: its address, or one with
    sessions that are kept."""
    url, beginning = (at, nullcontext()) if isinstance(at, str) else (at.url, continued(at))
    with asyncio.Runner() as runner:
        with beginning:
            store = runner.run(PostgresMetastore.open(url, Settings(metastore_pool_size=1)))

        class MachineOnStore(kind):  # type: ignore[misc,valid-type]
            def __init__(self) -> None:
                super().__init__(runner, store)

        yield MachineOnStore
        runner.run(store.close() if isinstance(at, str) else close(store, at))


def _renumbered(row: FeedRow, origin: int) -> FeedRow:
    return FeedRow(row.shard, row.seq + origin, row.kind, row.extents, row.log_starts, row.deleted_keys)
