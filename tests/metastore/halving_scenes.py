"""A topic that halves in the store, step by step, as a controller does it; and commits as agents stage them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.metastore.api.commit import MovedKeys, StagedBatch
from headrace.metastore.api.topics import Doubling, Halving, HalvingState
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.partitions.changes import Expansion, Shrinking, change_count, halve
from headrace.metastore.partitions.merging import MergeTimes
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.share_states import encode_kept
from tests.metastore.commit_scenes import Scene, batch, open_scene
from tests.metastore.sessions import Session, move_time, rows

QUIET_MS, BOUNDARY_QUIET_MS = 2_000, 60_000
TIMES = MergeTimes(
    lag_most=10, pause_most_ms=20_000, pause_again_ms=60_000, show_after_ms=5_000, settle_after_ms=300_000,
    producer_quiet_ms=QUIET_MS,
)  # fmt: skip


@dataclass
class HalvingScene(Scene):
    """`raw`: a session of the test's own; `ahead_ms`: how far the metastore's clock is ahead."""

    raw: Session
    controller_epoch: int = 0
    ahead_ms: int = 0

    async def image(self) -> TopicImage:
        """The topic now; `keys` are those of its partitions."""
        topic = (await load_image(self.store.cluster)).topics_by_id[self.topic.topic_id]
        self.keys[:] = [key for index in topic.indexes if (key := topic.key(index)) is not None]
        return topic

    async def later(self, ms: int) -> None:
        """Move the metastore's clock."""
        self.ahead_ms += ms
        await move_time(self.raw, self.ahead_ms / 1_000)

    async def double(self, *, sets_boundaries: bool = True) -> TopicImage:
        """Double the topic with all boundaries set, or none."""
        before = (await self.image()).ordered_partitions
        change = change_count(before, 2 * before.undeleted)
        assert isinstance(change, Expansion)
        doubling = Doubling(self.topic.topic_id, before.initial, before.undeleted, change, QUIET_MS, BOUNDARY_QUIET_MS)
        assert await self.store.topics.double_topic(await self.store.cluster.metadata_head(), doubling)
        await self.later(BOUNDARY_QUIET_MS)
        for split in await self.store.topics.quiet_splits(99 if sets_boundaries else 0):
            head = await self.store.cluster.metadata_head()
            assert await self.store.topics.set_split_boundary(self.controller_epoch, head, split)
        return await self.image()

    async def begin(self, *excluded: str, times: MergeTimes = TIMES) -> None:
        """The halving."""
        count = halve((await self.image()).ordered_partitions).undeleted
        head = await self.store.cluster.metadata_head()
        assert await self.store.topics.begin_halving(head, Halving(self.topic.topic_id, count, excluded, times))

    async def state(self) -> HalvingState:
        """Return the state of the halving."""
        state = await self.store.topics.halving_state(self.topic.topic_id)
        assert state is not None
        return state

    async def pause(self) -> int:
        """All children."""
        children = [pair.child_key for pair in (await self.state()).pairs]
        return await self.store.topics.pause_children(self.controller_epoch, children)

    async def merge(self) -> bool:
        """All children."""
        head, pairs = await self.store.cluster.metadata_head(), (await self.state()).pairs
        return await self.store.topics.merge_children(self.controller_epoch, head, self.topic.topic_id, pairs)

    async def show(self) -> bool:
        """The lower count."""
        before, head = (await self.image()).ordered_partitions, await self.store.cluster.metadata_head()
        count = before.undeleted // 2
        change = Shrinking(count, {index: before.partitions[index].leader_epoch + 1 for index in range(count)}, {})
        return await self.store.topics.show_halved_count(
            self.controller_epoch, head, self.topic.topic_id, before.initial, change
        )

    async def settle(self) -> bool:
        """The halving."""
        head = await self.store.cluster.metadata_head()
        return await self.store.topics.settle_halving(self.controller_epoch, head, self.topic.topic_id)

    async def halve(self) -> TopicImage:
        """All steps, without groups."""
        await self.begin()
        await self.pause()
        assert await self.merge()
        await self.later(TIMES.show_after_ms)
        assert await self.show()
        await self.later(TIMES.settle_after_ms)
        assert await self.settle()
        return await self.image()

    async def commit_offset(self, group: str, index: int, offset: int) -> None:
        """Commit the offset of a group, in a partition."""
        await self.raw.execute(
            "INSERT INTO group_offsets VALUES (%s, %s, %s, -1, '', now()) ON CONFLICT (group_id, partition_key)"
            " DO UPDATE SET committed_offset = excluded.committed_offset",
            (group, self.keys[index], offset),
        )

    async def store_share(self, group: str, index: int, start: int) -> None:
        """Store what a share group has done in a partition: all records before `start`."""
        await self.raw.execute(
            "INSERT INTO share_partitions (group_id, partition_key, start_offset, kept, coordinator_epoch, revision)"
            " VALUES (%s, %s, %s, %s, 7, 1) ON CONFLICT (group_id, partition_key)"
            " DO UPDATE SET start_offset = excluded.start_offset",
            (group, self.keys[index], start, encode_kept(())),
        )

    async def states(self) -> list[int]:
        """Return the states of the partitions, by index."""
        found = await rows(
            self.raw, "SELECT state FROM partitions WHERE topic_id = %s ORDER BY partition_index", self.topic.topic_id
        )
        return [state for (state,) in found]

    def aliased(self, child: int, parent: int, sequence: int = -1, **more: int) -> StagedBatch:
        """A batch for an alias, as an agent stages it."""
        return batch(self.keys[parent], sequence, alias=child, **more)

    def moved(self, parent: int, sequence: int = -1, **more: int) -> StagedBatch:
        """A batch for a parent, with a key of its child."""
        return batch(self.keys[parent], sequence, keys=int(MovedKeys.MOVED), **more)

    def stays(self, parent: int, sequence: int = -1, **more: int) -> StagedBatch:
        """A batch for a parent, without such a key."""
        return batch(self.keys[parent], sequence, keys=int(MovedKeys.STAY), **more)


async def open_halving_scene(store: PostgresMetastore, raw: Session, partitions: int = 2) -> HalvingScene:
    """A topic and an agent with a controller's lease."""
    scene = await open_scene(store, partitions)
    lease = await store.controller.hold_controller_lease(scene.agent.node_id, scene.topic.topic_id, 10_000_000)
    return HalvingScene(scene.store, scene.agent, scene.topic, scene.keys, raw, lease.controller_epoch)
