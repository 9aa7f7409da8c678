"""Topic configs declare a table: the worker makes it, follows what changes, and names what it cannot do."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.cli.doctor.tables import judge_tables
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.scan.errors import OptionError
from headrace.storage.supervision import Supervisor
from headrace.tables.catalog import CatalogAddress
from headrace.tables.creating import TableDeclarer
from headrace.tables.declaration import Declaration
from headrace.tables.follower import TableFollower
from headrace.tables.looking import Condition
from headrace.tables.metrics import TableMetrics
from headrace.tables.open_tables import OpenTables
from headrace.tables.worker import KEPT_BY_SPARK
from tests.manual_clock import ManualClock
from tests.spark.world import ScanWorld
from tests.tables.world import Tables

pytestmark = pytest.mark.requirement("X11")


async def configure(world: ScanWorld, topic: str, **configs: str | None) -> None:
    """Set configs of the topic, as an agent does; `_` is a dot."""
    records = [
        ConfigRecord(resource_type=2, resource_name=topic, name=f"table.{name.replace('_', '.')}", value=value)
        for name, value in configs.items()
    ]
    assert await world.postgres.cluster.append_records(await world.postgres.cluster.metadata_head(), records)


class Role:
    """A process with the role tables."""

    def __init__(self, follower: TableFollower, commands: OpenTables, clock: ManualClock, registry: CollectorRegistry):
        self.follower, self.commands, self.clock, self.registry = follower, commands, clock, registry

    async def turns(self) -> None:
        """Turns until nothing is left."""
        while await self.follower.turn():
            pass

    @property
    def refused(self) -> float | None:
        return self.registry.get_sample_value("headrace_table_declarations_refused")


@asynccontextmanager
async def role(tables: Tables) -> AsyncIterator[Role]:
    registry, clock = CollectorRegistry(), ManualClock(1 << 50)
    async with tables.worker() as worker:
        cluster, topics = worker.tables.cluster, worker.tables.topics
        metrics = TableMetrics(registry, clock.monotonic)
        worker.looked = metrics.looked
        parts = (worker, metrics, Supervisor(clock, registry), clock, random.Random(1))
        declarer = TableDeclarer(cluster, topics, tables.catalog)
        commands = OpenTables(cluster, tables.catalog, CatalogAddress("test", "headrace", {}))
        yield Role(TableFollower(*parts, 60_000, declarer=declarer), commands, clock, registry)


async def test_a_config_makes_the_table_pauses_it_and_resumes_it(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("Web.orders", 1)
    await world.write(key, 1)
    await configure(world, "Web.orders", enable="true", partition_by="day")
    async with role(tables) as running:
        (row,) = await running.commands.rows()
        assert (row["table"], row["condition"]) == ("web_orders", "declared")
        assert "no worker has made it yet" in str(*judge_tables([row], 60_000))
        await running.turns()
        await tables.check("Web.orders", "web_orders")
        assert [each.name for each in tables.load("web_orders").spec().fields] == ["timestamp_day"]
        with pytest.raises(OptionError, match=r"table.enable=true, which would make web_orders again"):
            await running.commands.drop("web_orders", purge=False)

        await configure(world, "Web.orders", enable="false")
        await running.turns()
        await world.write(key, 2)
        await running.turns()
        assert running.follower.last["web_orders"].condition is Condition.PAUSED
        assert running.follower.last["web_orders"].reason == "table.enable is false"
        assert len(tables.rows("web_orders")) == 3
        with pytest.raises(OptionError, match=r"set table.enable of topic Web.orders"):
            await running.commands.resume("web_orders", None)

        await configure(world, "Web.orders", enable="true")
        await running.turns()
        await tables.check("Web.orders", "web_orders")

        await running.commands.pause("web_orders", "maintenance")
        await running.turns()
        assert running.follower.last["web_orders"].reason == "maintenance", "a user's pause stays"
        await configure(world, "Web.orders", enable=None)
        await running.commands.drop("web_orders", purge=False)
        await running.turns()
        assert tables.catalog.names() == []


async def test_what_can_change_is_followed_and_the_rest_is_a_named_conflict(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await configure(world, "orders", enable="true", value_format="json", errors_tolerance="none")
    await world.write(key, 1)
    async with role(tables) as running:
        await running.turns()
        assert running.follower.last["orders"].condition is Condition.PAUSED, "the values are no JSON"
        await configure(world, "orders", errors_tolerance="all")
        await running.turns()
        with pytest.raises(OptionError, match=r"set table.errors.tolerance of topic orders"):
            await running.commands.resume("orders", None, "none")
        await running.commands.resume("orders", None)
        await running.turns()
        assert len(tables.dead()) == 3

        await configure(world, "orders", enable="false", value_format="binary")
        await running.turns()
        await configure(world, "orders", enable="true")
        await running.turns()
        last = running.follower.last["orders"]
        assert last.condition is Condition.STOPPED
        assert '"table.value.format":"json"' in last.reason
        await configure(world, "orders", value_format="json")
        await running.turns()
        assert running.follower.last["orders"].condition is Condition.FOLLOWING

        await configure(world, "orders", name="newer", value_format="binary")
        await running.turns()
        await tables.check("orders", "newer")
        assert running.follower.last["orders"].reason == "table.enable is false", "the configs are of another table"


async def test_a_name_that_is_taken_holds_up_no_other_topic(
    world: ScanWorld, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.b", "a_b", "good", "made", "x"):
        await world.topic(name, 1)
    await tables.create("made")
    await configure(world, "a.b", enable="true")
    async with role(tables) as running:
        await running.turns()
        for name in ("a_b", "good", "made"):
            await configure(world, name, enable="true")
        tables.catalog.catalog.create_table("headrace.x", tables.load("made").schema())
        await configure(world, "x", enable="true")
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                await running.turns()
        assert tables.catalog.names() == ["a_b", "good", "made", "x"]
        assert running.follower.refused.keys() == {"a_b", "made", "x"}
        assert "the table of topic a.b" in running.follower.refused["a_b"]
        assert "`headrace tables create` made" in running.follower.refused["made"]
        assert "Headrace did not create it" in running.follower.refused["x"]
        assert len([each for each in caplog.messages if "make no table" in each]) == 3, "each is said once"
        assert running.refused == 3
        reasons = {
            row["topic"]: row["reason"] for row in await running.commands.rows() if row["condition"] == "declared"
        }
        assert reasons.keys() == {"a_b", "x"}
        assert reasons["a_b"].startswith("the name is taken: headrace.a_b is the table of topic a.b ")
        assert "Headrace did not create it" in reasons["x"]


async def test_a_topic_says_how_often_its_table_commits(world: ScanWorld, tables: Tables) -> None:
    slow, fast = [(await world.topic(name, 1))[0] for name in ("slow", "fast")]
    await configure(world, "slow", enable="true", commit_interval_ms="300000")
    await configure(world, "fast", enable="true", commit_interval_ms="1000")
    async with role(tables) as running:
        await running.turns()
        for seconds, expected in ((1, (0, 3)), (58, (0, 6)), (242, (9, 9))):
            await world.write(slow, seconds)
            await world.write(fast, seconds)
            running.clock.jump(seconds)
            await running.turns()
            assert (len(tables.rows("slow")), len(tables.rows("fast"))) == expected


async def test_two_processes_make_one_table(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await configure(world, "orders", enable="true")
    await world.write(key, 1)
    other = tables.again()
    async with role(tables) as one, role(other) as two:
        declarers = [each.follower.declarer for each in (one, two) if each.follower.declarer is not None]
        made = await asyncio.gather(*(each.make([]) for each in declarers))
        assert any(is_new for is_new, _ in made)
        assert [await each.make(["orders"]) for each in declarers] == [(False, {}), (False, {})]
        await two.turns()
    await tables.check()


async def test_a_table_with_a_row_per_key_is_made_and_left_to_spark(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await world.topic("customers", 1, **{"cleanup.policy": "compact"})
    await world.write(key, 1)
    await configure(world, "orders", enable="true", mode="upsert")
    await configure(world, "customers", enable="true", mode="upsert", partition_by="bucket[4](key)")
    async with role(tables) as running:
        await running.turns()
        assert tables.catalog.names() == ["customers"]
        assert "needs one that is compacted" in running.follower.refused["orders"]
        assert [field.name for field in tables.load("customers").spec().fields] == ["key_bucket_4"]
        assert running.follower.last["customers"].reason == KEPT_BY_SPARK
        rows = {row["table"]: row for row in await running.commands.rows()}
        assert (rows["customers"]["mode"], rows["customers"]["reason"]) == ("upsert", KEPT_BY_SPARK)
        assert (rows["orders"]["mode"], rows["orders"]["condition"]) == ("upsert", "declared")
        await configure(world, "orders", key_columns="key")
        await running.turns()
        assert running.follower.refused == {}
        assert tables.load("orders").scan().to_arrow().num_rows == 0
        assert running.follower.last["orders"].lag == {0: 3}


def test_the_declaration_of_a_table_from_before_there_were_modes_is_the_same() -> None:
    before = '{"table.name":"orders","table.partition.by":"day","table.start":"earliest","table.value.format":"binary"}'
    assert Declaration.of("orders", {"table.partition.by": "day"}).fixed == before
    assert '"table.mode":"upsert"' in Declaration.of("orders", {"table.mode": "upsert"}).fixed
