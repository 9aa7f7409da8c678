"""What an operator says about background work acts while it runs: jobs at a time, bytes a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.compactor.worker import LINK_CONNECTIONS, LOOK_SECONDS, SPARE_CONNECTIONS, Pace, follow_pace
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import (
    BROKER_RESOURCE,
    EffectiveConfigs,
    set_for_broker,
    setting_record,
)
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import UnavailableError
from tests.compactor.workers import a_worker
from tests.manual_clock import ManualClock

THREADS, BYTES = "compactor.threads", "compactor.io.max.bytes.per.second"
UNLIMITED = 2**63 - 1
CONFIGS = EffectiveConfigs(Settings(compactor_threads=2, compactor_io_max_bytes_per_second=5_000))


class SaidConfigs:
    """Implements metastore.api.cluster.ClusterApi; `away`: that many calls fail."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.away = self.asked = 0

    async def cluster_configs(self) -> dict[str, str]:
        self.asked += 1
        if self.away:
            self.away -= 1
            raise UnavailableError("down")
        return dict(self.said)


@pytest.fixture
def api() -> SaidConfigs:
    return SaidConfigs()


@pytest.fixture
async def changes(api: SaidConfigs, fake_clock: ManualClock) -> AsyncIterator[list[Pace]]:
    """The paces that a worker received."""
    paces: list[Pace] = []

    async def change(pace: Pace) -> None:
        paces.append(pace)

    following = asyncio.create_task(follow_pace(api, CONFIGS, fake_clock, change))
    await fake_clock.settle()
    yield paces
    assert not following.done()
    following.cancel()


async def test_the_pace_is_the_clusters_where_it_says_one(
    api: SaidConfigs, changes: list[Pace], fake_clock: ManualClock
) -> None:
    assert changes == [], "the settings hold from the start"
    api.said = {THREADS: "3", "log.retention.ms": "5"}
    await fake_clock.advance(LOOK_SECONDS)
    api.said = {BYTES: "7000"}
    await fake_clock.advance(LOOK_SECONDS)
    api.said = {}
    await fake_clock.advance(3 * LOOK_SECONDS)
    assert changes == [Pace(3, 5_000, UNLIMITED), Pace(2, 7_000, UNLIMITED), Pace(2, 5_000, UNLIMITED)], (
        "once for each change"
    )


async def test_the_last_known_pace_holds_while_the_metastore_is_away(
    api: SaidConfigs, changes: list[Pace], fake_clock: ManualClock
) -> None:
    api.said = {THREADS: "3"}
    await fake_clock.advance(LOOK_SECONDS)
    api.said, api.away = {THREADS: "4"}, 2
    await fake_clock.advance(2 * LOOK_SECONDS)
    assert changes == [Pace(3, 5_000, UNLIMITED)]
    await fake_clock.advance(LOOK_SECONDS)
    assert changes == [Pace(3, 5_000, UNLIMITED), Pace(4, 5_000, UNLIMITED)]


async def test_an_agents_worker_has_the_agents_pace_and_asks_nothing(api: SaidConfigs, fake_clock: ManualClock) -> None:
    """Its id may change when the agent registers again."""
    paces: list[Pace] = []
    node_ids = [7]
    own = ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="7", name=BYTES, value="9000")
    records = [setting_record(THREADS, "3"), setting_record(BYTES, "7000"), own]
    image = apply(MetadataImage(), map(encode_record, records))

    async def change(pace: Pace) -> None:
        paces.append(pace)

    following = asyncio.create_task(
        follow_pace(api, CONFIGS, fake_clock, change, lambda: set_for_broker(image, node_ids[0]))
    )
    await fake_clock.settle()
    node_ids[0] = 8
    await fake_clock.advance(LOOK_SECONDS)
    assert paces == [Pace(3, 9_000, UNLIMITED), Pace(3, 7_000, UNLIMITED)]
    assert api.asked == 0
    following.cancel()


async def test_a_worker_takes_the_clusters_pace_over(metastore: PostgresMetastore, fake_clock: ManualClock) -> None:
    """On real Postgres: the records' projection is what is read, and a job finds a connection."""
    worker = a_worker(metastore, fake_clock)
    paces: asyncio.Queue[Pace] = asyncio.Queue()

    async def change(pace: Pace) -> None:
        await worker._change_pace(pace)
        paces.put_nowait(pace)

    image = await load_image(metastore.cluster)
    wanted = {THREADS: "3", BYTES: "12345"}
    records = [
        *(ConfigRecord(resource_type=4, resource_name="", name=name, value=value) for name, value in wanted.items()),
        ConfigRecord(resource_type=4, resource_name="7", name="max.connections", value="9"),
        ConfigRecord(resource_type=4, resource_name="7", name=THREADS, value="4"),
        ConfigRecord(resource_type=32, resource_name="", name="consumer.session.timeout.ms", value="50000"),
    ]
    assert await metastore.cluster.append_records(image.offset, records)
    said = await metastore.cluster.cluster_configs()
    assert {name: said.get(name) for name in wanted} == wanted
    assert not said.keys() & {"max.connections", "consumer.session.timeout.ms"}
    of_agent = set_for_broker(await load_image(metastore.cluster), 7)
    assert {name: of_agent[name] for name in (*wanted, "max.connections")} == {
        **wanted,
        THREADS: "4",
        "max.connections": "9",
    }
    following = asyncio.create_task(follow_pace(metastore.cluster, EffectiveConfigs(Settings()), fake_clock, change))
    assert await asyncio.wait_for(paces.get(), 600) == Pace(3, 12_345, UNLIMITED)
    assert len(worker._runner._slots) == 3
    assert worker._throttled._bytes._rate == 12_345
    assert metastore.pool.max_size == 3 + LINK_CONNECTIONS + SPARE_CONNECTIONS
    following.cancel()
    await worker._runner.stop(0)
