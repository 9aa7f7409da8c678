"""A topic halves on real Postgres while clients and groups commit, at gates that open in a drawn order.

Fault model: operations of one round race at the metastore's lock points (lock_gates.py): batches of two clients,
a step of a controller, commits of groups. Clients know only the count: one keeps the higher one, one takes the lower
one as soon as it is shown and sends newer records to the parent while older ones for the child are on their way.
Agents stage by the newest image or by an older one. Answers are lost, so batches are sent again, and given up at last.
Time moves between rounds only, and a step is tried before it is due as well.
Invariant checked: a group that reads the child and then the parent gets each client's records in the order in which it
sent them, each once; none is refused finally, as clients send again in each round; nothing is appended to a child once
it is an alias; each group, one of them a share group, has read its end by then. An error or a deadlock is a finding.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from headrace.metastore.api.commit import NO_ALIAS, BatchOutcome, MovedKeys, StagedBatch
from headrace.metastore.log.image import TopicImage
from headrace.metastore.partitions.merging import MergePhase, MergeTimes
from tests.metastore.commit_scenes import batch
from tests.metastore.halving_scenes import HalvingScene
from tests.metastore.lock_gates import Operation, Sessions, run_gated
from tests.metastore.sessions import rows

PARENT, CHILD = 0, 2
TIMES = MergeTimes(
    lag_most=3, pause_most_ms=150, pause_again_ms=200, show_after_ms=300, settle_after_ms=2_500, producer_quiet_ms=400
)
DELIVERY_MS = 2_000
"""delivery.timeout.ms: shorter than the time after which a halving is settled."""
ROUND_MS = (50, 100, 150)
DRAINING_ROUNDS = 8
"""Before the first step of the controller."""
ROUNDS_MAX, ROUNDS_AFTER = 300, 6
SHARE_GROUP = "two"
GROUPS = ("one", SHARE_GROUP)
_COMMIT = b"""INSERT INTO group_offsets VALUES (%s, %s, %s, -1, '', now()) ON CONFLICT (group_id, partition_key)
    DO UPDATE SET committed_offset = greatest(group_offsets.committed_offset, excluded.committed_offset)"""
_SHARE_COMMIT = b"""INSERT INTO share_partitions VALUES (%s, %s, %s, '', 1, 1) ON CONFLICT (group_id, partition_key)
    DO UPDATE SET start_offset = greatest(share_partitions.start_offset, excluded.start_offset)"""


class OutOfOrder(AssertionError):
    """What is read is not what the clients sent, in its order."""


@dataclass
class Client:
    """One producer's records with keys of the child; record n is the n-th. One batch of a partition is under way."""

    producer: int
    takes_lower_counts: bool
    sent: int = 0
    count: int = 4
    queues: dict[int, list[int]] = field(default_factory=lambda: {PARENT: [], CHILD: []})
    sequences: dict[int, int] = field(default_factory=lambda: {PARENT: 0, CHILD: 0})

    produced_ms: list[int] = field(default_factory=list)

    def produce(self, now_ms: int) -> None:
        """Another record, to the partition that the count says; it stays there."""
        self.queues[CHILD if self.count == 4 else PARENT].append(self.sent)
        self.produced_ms.append(now_ms)
        self.sent += 1

    def give_up(self, now_ms: int) -> None:
        """Give up what is queued for the child for too long, and what is queued behind it."""
        queue = self.queues[CHILD]
        if self.takes_lower_counts and queue and now_ms - self.produced_ms[queue[0]] >= DELIVERY_MS:
            queue.clear()


class HalvingHistory:
    """One database's past. `seed` decides everything but the operating system's timing."""

    def __init__(self, sessions: Sessions, scene: HalvingScene, seed: int) -> None:
        self.sessions, self.scene, self.seed = sessions, scene, seed
        self.rng = random.Random(seed)
        self.clients = [Client(1000, takes_lower_counts=False), Client(1001, takes_lower_counts=True)]
        self.images: list[TopicImage] = []
        self.now_ms = time.time_ns() // 1_000_000 + scene.ahead_ms
        self.placed: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        """Producer -> record -> (0 for the child's log, 1 for the parent's; offset)."""
        self.merged_end: int | None = None

    async def run(self) -> None:
        """Begin to halve, and continue until it is settled; then look at everything."""
        await self._set_clock()
        await self.scene.begin(times=TIMES)
        self.images = [await self.scene.image()]
        while self.images[-1].halving >= 0:
            assert len(self.images) < ROUNDS_MAX, f"seed={self.seed} the halving does not come to an end"
            await self._round()
        for _ in range(ROUNDS_AFTER):
            await self._round()
        self._check()

    async def _round(self) -> None:
        self.now_ms += self.rng.choice(ROUND_MS)
        await self._set_clock()
        for client in self.clients:
            for _ in range(self.rng.choice((0, 1, 1, 2))):
                client.produce(self.now_ms)
            client.give_up(self.now_ms)
        operations = [op for client in self.clients for op in self._sends(client)]
        operations = [*operations, await self._step(), self._commit_offset()]
        busy = self.scene.shard(self.rng.choice((PARENT, CHILD)))
        found = await run_gated(self.sessions, self.rng, self.scene.store.commit_shards, busy, operations)
        errors = [f"{op.name}: {what!r}" for op, what in zip(operations, found, strict=True) if _is_error(what)]
        if errors:
            raise OutOfOrder(f"seed={self.seed} {errors}")
        await self._look()

    # -- clients

    def _sends(self, client: Client) -> list[Operation]:
        """Its first batch for each partition."""
        return [self._send(client, index) for index, queue in client.queues.items() if queue]

    def _send(self, client: Client, index: int) -> Operation:
        record = client.queues[index][0]
        staged = self._stage(client, index)
        is_lost = self.rng.random() < 0.2

        async def real() -> None:
            ((outcome, offset),) = await self.scene.outcomes(staged)
            if outcome is BatchOutcome.APPENDED:
                place = int(staged.partition_key == self.scene.keys[PARENT]), offset
                if self.placed[client.producer].setdefault(record, place) != place:
                    raise OutOfOrder(f"seed={self.seed} stored twice: producer={client.producer} record={record}")
            elif outcome not in (BatchOutcome.DUPLICATE, BatchOutcome.SENT_BACK, BatchOutcome.LEADER_EPOCH_MISMATCH):
                raise OutOfOrder(f"seed={self.seed} {outcome.name}")
            if outcome in (BatchOutcome.APPENDED, BatchOutcome.DUPLICATE) and not is_lost:
                client.queues[index].pop(0)
                client.sequences[index] += 1

        return Operation(f"send record {record} of {client.producer} to {index}", real, _nothing)

    def _stage(self, client: Client, index: int) -> StagedBatch:
        """Stage batches by an agent with one of the last images."""
        image = self.rng.choice(self.images[-2:])
        target, keys, alias = index, MovedKeys.UNKNOWN, NO_ALIAS
        if index in image.aliases:
            target, alias = image.aliases[index], index
        elif image.moving_child(index) is not None:
            keys = MovedKeys.MOVED
        return batch(
            self.scene.keys[target],
            client.sequences[index],
            1,
            producer=client.producer,
            leader_epoch=image.leader_epochs[target],
            keys=keys,
            alias=alias,
        )

    # -- the controller and groups

    async def _step(self) -> Operation:
        """One that may be due, or none."""
        steps: dict[str, Any] = {"show": self.scene.show, "settle": self.scene.settle}
        state = await self.scene.store.topics.halving_state(self.scene.topic.topic_id)
        pairs = [] if state is None else list(state.pairs)
        store, epoch, head = (
            self.scene.store,
            self.scene.controller_epoch,
            await self.scene.store.cluster.metadata_head(),
        )
        steps |= {
            "pause": lambda: store.topics.pause_children(epoch, [pair.child_key for pair in pairs]),
            "resume": lambda: store.topics.resume_children(epoch, [pair.child_key for pair in pairs]),
            "merge": lambda: store.topics.merge_children(epoch, head, self.scene.topic.topic_id, pairs),
        }
        if state is None or len(self.images) < DRAINING_ROUNDS:
            return Operation("nothing", self.scene.image, _nothing)
        if state.shown_ms is not None:
            name = "settle"
        elif any(pair.phase is MergePhase.DRAINING for pair in pairs):
            name = "pause"
        elif any(pair.phase is MergePhase.PAUSED for pair in pairs):
            name = self.rng.choice(("merge", "merge", "merge", "resume"))
        else:
            name = "show"
        return Operation(name, steps[name], _nothing)

    def _commit_offset(self) -> Operation:
        """A group commits what it has read of the child, mostly all."""
        group, behind = self.rng.choice(GROUPS), self.rng.choice((0, 0, 0, 1))

        async def real() -> None:
            end = await self._end()
            sql = _SHARE_COMMIT if group == SHARE_GROUP else _COMMIT
            await self.scene.raw.execute(sql, (group, self.scene.keys[CHILD], max(end - behind, 0)))

        return Operation(f"commit of {group}", real, _nothing)

    # -- what is seen

    async def _look(self) -> None:
        topic = await self.scene.image()
        self.images.append(topic)
        for client in self.clients:
            if client.takes_lower_counts:
                client.count = topic.undeleted_partition_count
        if CHILD in topic.aliases:
            end = await self._end()
            if self.merged_end is None:
                self.merged_end = end
                offsets = await rows(
                    self.scene.raw,
                    "SELECT committed_offset FROM group_offsets WHERE partition_key = %s"
                    " UNION SELECT start_offset FROM share_partitions WHERE partition_key = %s",
                    *(self.scene.keys[CHILD],) * 2,
                )
                if any(offset < end for (offset,) in offsets):
                    raise OutOfOrder(f"seed={self.seed} merged before groups committed: end={end} {offsets}")
            if end != self.merged_end:
                raise OutOfOrder(f"seed={self.seed} an alias got records: end={end} before={self.merged_end}")

    def _check(self) -> None:
        for producer, placed in self.placed.items():
            places = [placed[record] for record in sorted(placed)]
            if places != sorted(places):
                raise OutOfOrder(f"seed={self.seed} producer={producer} is read out of order: {places}")

    async def _end(self) -> int:
        """The child's."""
        sql = "SELECT max(high_watermark) FROM partition_heads WHERE partition_key = %s"
        ((end,),) = await rows(self.scene.raw, sql, self.scene.keys[CHILD])
        return int(end)

    async def _set_clock(self) -> None:
        clock = "CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN "
        await self.scene.raw.execute(f"{clock}{self.now_ms}".encode())


async def _nothing(_: Any) -> None:
    """No model: what is checked holds for any order of the operations."""


def _is_error(found: Any) -> bool:
    return isinstance(found, BaseException)
