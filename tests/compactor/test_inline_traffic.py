"""What is read of inline files from the metastore is counted: it may cross zones (W15)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from tests.compactor.inline_world import InlineWorld
from tests.storage.batches import plain_batch

pytestmark = pytest.mark.requirement("W15", "X13")


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[InlineWorld]:
    async with InlineWorld.running(metastore, metastore_url) as world:
        await world.raise_level()
        yield world


def read_bytes() -> float:
    return REGISTRY.get_sample_value("headrace_inline_read_bytes_total") or 0.0


async def test_bytes_that_merges_and_readers_take_from_the_metastore_are_counted(world: InlineWorld) -> None:
    (key,) = await world.topic("t", 1)
    inline = await world.commit((key, plain_batch(10, b"v" * 100)), slot=await world.slot())
    before = read_bytes()
    await world.store.get(object_key(inline), ByteRange(16, 100))
    assert read_bytes() == before + 100
    await world.compact(1)
    (extent,) = await world.extents(key)
    assert read_bytes() == before + 100 + extent.length, "the merge reads each byte once"
    await world.store.get(object_key(extent.file_id), ByteRange(16, 100))
    assert read_bytes() == before + 100 + extent.length, "it is in the bucket by now"
