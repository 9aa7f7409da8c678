"""The compactor: the real merge (compactor/merge.py) of some extents, which takes over as late as it likes.

Fault model: between its plan and its swap anything may happen: log starts move, topics go, another merge
takes the same extents, their files are deleted under it, the sweeper takes the new file for garbage; a swap
may come twice. Files that a swap killed are deleted at once or by the next sweep, without the grace that
real readers get.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from headrace.compactor.merge import MergeCounts, MergedFile, MergeLimits, merge
from headrace.compactor.plan import PartitionPlan, Plan
from headrace.metastore.api.compaction import Swap
from headrace.metastore.api.read import Extent
from headrace.storage.file_id import level_of, new_file_id, object_key
from headrace.storage.records.compression import Codec
from headrace.storage.segment.reader import walk_batches
from tests.simulation.metadata import Place
from tests.storage.altered_reads import reads_of

if TYPE_CHECKING:
    from tests.simulation.world import World

SWAP_SECONDS = (0.0, 0.8)
MERGE_SECONDS_MAX = 1.0


class Merged(NamedTuple):
    """A file that was made. `places`: (partition key, offset) of each record -> position and size of its batch."""

    file_id: uuid.UUID
    swaps: list[Swap]
    places: dict[tuple[int, int], tuple[int, int]]


class SimulatedCompactor:
    """Works with the metastore and the bucket directly: its own connection is not what is tested."""

    def __init__(self, world: World) -> None:
        self._world = world

    def merge(self, rng: random.Random) -> None:
        """Plan now; copy, or open and merge, concurrently with the rest; swap later, perhaps twice."""
        places = [place for topic in self._world.metadata.living() for place in topic.places()]
        chosen = sorted(rng.sample(places, rng.randint(1, len(places))), key=lambda p: (p.topic.topic_id.int, p.index))
        partitions = tuple(
            self._partition(place, extents, rng) for place in chosen if (extents := self._some(place, rng))
        )
        if not partitions:
            return
        self._start(Plan(rng.choice((1, 2, 2)), self._world.database.clock.wall_ms(), partitions), rng)

    def merge_flushed(self, places: Sequence[Place], rng: random.Random) -> None:
        """Do what the planner does before it cleans partitions: copy their extents out of files of level 0."""
        partitions = []
        for place in places:
            extents = [
                extent
                for extent in self._world.database.model.partitions[place.key].visible_extents
                if level_of(extent.source) == 0
            ]
            partitions += [self._partition(place, extents, rng)] if extents else []
        self._start(Plan(1, self._world.database.clock.wall_ms(), tuple(partitions)), rng)

    def _start(self, plan: Plan, rng: random.Random) -> None:
        self._world.stay_until(self._world.loop.time() + MERGE_SECONDS_MAX + SWAP_SECONDS[1])
        self._world.spawn(self._carry_out(plan, random.Random(rng.getrandbits(64))))

    def _some(self, place: Place, rng: random.Random) -> list[Extent]:
        """A few neighbours."""
        extents = self._world.database.model.partitions[place.key].visible_extents
        first = rng.randrange(len(extents)) if extents else 0
        return extents[first : first + rng.choice((1, 3, 10))]

    def _partition(self, place: Place, extents: list[Extent], rng: random.Random) -> PartitionPlan:
        codec = rng.choice((None, None, Codec.NONE, Codec.LZ4))
        largest = rng.choice((300, 1 << 20))
        roll_offset = self._world.cleaner.database.roll_offsets.get(place.key, 0)
        topic_id = place.topic.topic_id
        return PartitionPlan(place.key, topic_id, place.index, codec, tuple(extents), largest, roll_offset)

    async def _carry_out(self, plan: Plan, rng: random.Random) -> None:
        limits = MergeLimits(file_bytes=rng.choice((400, 1 << 20)), extent_bytes=rng.choice((300, 1_000, 1 << 20)))
        async with aclosing(merge(plan, reads_of(self._world.stored), limits, MergeCounts())) as files:
            async for file in files:
                self._store(plan, file, rng)

    def _store(self, plan: Plan, file: MergedFile, rng: random.Random) -> None:
        file_id = new_file_id(plan.made_ms, rng, plan.level)
        merged = Merged(file_id, file.swaps, places_of(file.swaps, file.body))
        self._world.note("merged", str(merged.file_id), *[swap[:3] for swap in merged.swaps])
        self._world.bucket.put(object_key(merged.file_id), file.body)
        for _ in range(rng.choice((1, 1, 2))):
            self._world.happens_late(rng.uniform(*SWAP_SECONDS), self._swap, merged, rng)

    def _swap(self, merged: Merged, rng: random.Random) -> None:
        """Swap with a janitor at its heels, half of the time."""
        self._world.database.swap(merged)
        if rng.random() < 0.5 and not self._world.plan.failovers:
            for file_id in sorted({entry.file_id for swap in merged.swaps for entry in swap.inputs}):
                self._world.sweeper.clean(file_id)


def places_of(swaps: Sequence[Swap], body: bytes) -> dict[tuple[int, int], tuple[int, int]]:
    """See Merged."""
    places = {}
    for swap in swaps:
        offset = swap.base_offset
        for position, header in walk_batches(memoryview(body)[: swap.position + swap.length], swap.position):
            for record in range(offset, offset + header.last_offset_delta + 1):
                places[swap.partition_key, record] = position, header.size
            offset += header.last_offset_delta + 1
    return places
