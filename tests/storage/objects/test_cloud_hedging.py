"""A slow PUT is sent a second time to Azurite and fake-gcs-server, through a proxy that swallows the first one.

Fault model: tests/torture/proxy.py; `half_open`: the first PUT never arrives; `mute`: it is stored, and its answer is
lost.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from headrace.config.load import load
from headrace.storage.clock import SystemClock
from headrace.storage.errors import NotFoundError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.hedging import HEDGES, KIB, SAMPLES_MIN, HedgedStore, HedgePolicy
from headrace.storage.objects.open import StoreOptions, cloud_store
from headrace.storage.objects.store import ObjectStore
from tests.fixtures_clouds import CloudBucket, azurite_url, cloud_bucket, fake_gcs_url
from tests.manual_clock import ManualClock
from tests.torture.proxy import FaultProxy

__all__ = ["azurite_url", "cloud_bucket", "fake_gcs_url"]

KEY = object_key(new_file_id(1_700_000_000_000, random.Random(1)))
P95_S = 0.1


def hedged(bucket: CloudBucket, clock: ManualClock) -> HedgedStore:
    """A store that has seen PUTs of P95_S, and may hedge each one."""
    policy = HedgePolicy(100, parallelism=8)
    for _ in range(SAMPLES_MIN):
        policy.begin(KIB, clock.monotonic())
        policy.end(KIB, P95_S, clock.monotonic())
    plain = cloud_store(bucket.url, StoreOptions.of(load(environ={}, flags=bucket.settings)), SystemClock())
    assert plain is not None
    return HedgedStore(plain, policy, clock)


@pytest.mark.parametrize("fault", ["half_open", "mute"])
async def test_the_second_put_wins_and_the_first_is_given_up(cloud_bucket: CloudBucket, fault: str) -> None:
    proxy, clock, direct = FaultProxy(random.Random(1)), ManualClock(), cloud_bucket.open()
    await proxy.start()
    proxy.target = cloud_bucket.port
    store = hedged(cloud_bucket.at(proxy.port), clock)
    won = HEDGES.labels("won")._value.get()
    await store.put("warm", b"opens a connection")

    proxy.fault = fault
    putting = asyncio.create_task(store.put(KEY, b"the body" * 1000))
    async with asyncio.timeout(300):
        while not (proxy.has_swallowed if fault == "half_open" else await is_there(direct)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    proxy.fault = ""
    await clock.advance(P95_S)
    async with asyncio.timeout(300):
        await putting
    assert HEDGES.labels("won")._value.get() == won + 1
    assert await direct.get(KEY) == b"the body" * 1000
    assert [info.key async for info in direct.list_objects("segments/")] == [KEY]
    await store.close()
    await direct.close()
    await proxy.close()


async def is_there(store: ObjectStore) -> bool:
    try:
        await store.head(KEY)
    except NotFoundError:
        return False
    return True
