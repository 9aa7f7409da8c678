"""The compactor: copies what some extents hold into a new file, and lets it take over as late as it likes.

Fault model: between its plan and its swap anything may happen: log starts move, topics go, another merge
takes the same extents, the sweeper takes the new file for garbage; a swap may come twice. Files that a
swap killed are deleted at once or by the next sweep, without the grace that real readers get.
"""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, NamedTuple

from metastore.compaction import Swap, SwapInput
from metastore.values import Extent
from storage.file_id import new_file_id, object_key
from storage.records.header import read_header
from storage.segment.writer import SegmentWriter
from tests.simulation.metadata import Place

if TYPE_CHECKING:
    from tests.simulation.world import World

SWAP_SECONDS = (0.0, 0.8)


class Merged(NamedTuple):
    """A file that was made. `positions`: (partition key, offset) of each record -> of its batch in the file."""

    file_id: uuid.UUID
    swaps: list[Swap]
    positions: dict[tuple[int, int], int]


class SimulatedCompactor:
    """Works with the metastore and the bucket directly: its own connection is not what is tested."""

    def __init__(self, world: World) -> None:
        self._world = world

    def merge(self, rng: random.Random) -> None:
        """Plan and copy now, swap later, perhaps twice."""
        places = [place for topic in self._world.metadata.living() for place in topic.places()]
        chosen = rng.sample(places, rng.randint(1, len(places)))
        writer = SegmentWriter()
        merged = Merged(new_file_id(self._world.database.clock.wall_ms(), rng), [], {})
        for place in sorted(chosen, key=lambda place: (place.topic.topic_id.int, place.index)):
            if inputs := self._choose(place, rng):
                merged.swaps.append(self._copy(writer, place, inputs, merged))
        if not merged.swaps:
            return
        self._world.note("merged", str(merged.file_id), *[swap[:3] for swap in merged.swaps])
        self._world.bucket.put(object_key(merged.file_id), writer.finish())
        for _ in range(rng.choice((1, 1, 2))):
            self._world.happens_late(rng.uniform(*SWAP_SECONDS), self._swap, merged, rng)

    def _swap(self, merged: Merged, rng: random.Random) -> None:
        """With a janitor at its heels, half of the time."""
        self._world.database.swap(merged)
        if rng.random() < 0.5:
            for file_id in sorted({entry.file_id for swap in merged.swaps for entry in swap.inputs}):
                self._world.sweeper.clean(file_id)

    def _choose(self, place: Place, rng: random.Random) -> list[Extent]:
        """A few neighbours under one leader epoch."""
        extents = self._world.database.model.partitions[place.key].visible_extents
        first = rng.randrange(len(extents)) if extents else 0
        some = extents[first : first + rng.choice((1, 3, 10))]
        return [extent for extent in some if extent.leader_epoch == some[0].leader_epoch]

    def _copy(self, writer: SegmentWriter, place: Place, inputs: list[Extent], merged: Merged) -> Swap:
        positions = []
        for extent in inputs:
            body = self._world.bucket.read(extent.file_id)
            assert body is not None, f"live, and its file is gone: {extent}"
            at, offset = extent.position, extent.base_offset
            while at < extent.position + extent.length:
                header = read_header(body, at)
                batch = memoryview(body)[at : at + header.size]
                positions.append(writer.add(place.topic.topic_id, place.index, place.key, batch, header))
                for record in range(offset, offset + header.last_offset_delta + 1):
                    merged.positions[place.key, record] = positions[-1]
                at += header.size
                offset += header.last_offset_delta + 1
        return Swap(
            place.key,
            inputs[0].base_offset,
            inputs[-1].last_offset,
            positions[0],
            sum(extent.length for extent in inputs),
            inputs[0].leader_epoch,
            max(extent.max_timestamp for extent in inputs),
            tuple(SwapInput(extent.last_offset, extent.file_id) for extent in inputs),
        )
