"""A table that cannot be kept says why everywhere: its names, what its catalog refuses, and a topic that is gone."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import requests
from pyiceberg import exceptions
from pyiceberg.catalog.sql import SqlCatalog

from headrace.cli.doctor.tables import TablesFound, judge
from headrace.config.settings import Settings
from headrace.metastore.log.snapshot import load_image
from headrace.scan.errors import OptionError
from headrace.storage.errors import ThrottledError
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.errors import RefusedError
from headrace.tables.listing import waited_ms
from headrace.tables.looking import Condition
from headrace.tables.state import DETACHED
from headrace.tables.upkeep.jobs import UpkeepJobs
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from tests.spark.world import ScanWorld
from tests.tables.test_declared_tables import Role, configure, role
from tests.tables.test_valued_tables import JSON, batch
from tests.tables.world import Failing, Tables

pytestmark = pytest.mark.requirement("X11")


def told(rows: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return what the doctor says of the rows, without the role."""
    found = judge(TablesFound(rows, {}), Settings())
    return {each.check: (each.level.value, f"{each.found} {each.to_do}") for each in found if each.check != "role"}


def metric(running: Role, name: str, **labels: str) -> float | None:
    return running.registry.get_sample_value(f"headrace_table_{name}", {"table": "orders", **labels})


async def test_a_name_that_another_table_has_is_a_state_everywhere(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await world.topic("evil", 1)
    await configure(world, "orders", enable="true", value_format="json")
    await world.commit((key, batch({"item": 1})))
    async with role(tables) as running:
        await running.turns()
        assert told(await running.commands.rows()) == {"following": ("ok", mock.ANY)}
        schema = tables.load().schema()
        properties = {"headrace.topic": "evil", **{f"headrace.{name}": value for name, value in OTHER.items()}}
        foreign = tables.catalog.catalog.create_table("headrace.orders_dead_letters", schema, properties=properties)
        assert "is the table of topic evil" in told(await running.commands.rows())["blocked"][1], "before it matters"

        await world.commit((key, batch({"item": 2}, b"no JSON", {"item": 3})))
        await running.turns()
        last = running.follower.last["orders"]
        assert (last.condition, metric(running, "following")) == (Condition.BLOCKED, 0)
        assert "headrace.orders_dead_letters is the table of topic evil" in last.reason
        await world.commit((key, batch({"item": 4})))
        await running.turns()
        assert metric(running, "lag", partition="0") == 1
        (row,) = [each for each in await running.commands.rows() if each["table"] == "orders"]
        assert (row["condition"], row["reason"], row["lag"]) == ("blocked", last.reason, 1)
        assert told([row])["blocked"][0] == "bad"
        assert (await running.commands.describe("orders"))["condition"] == "blocked"
        report = TableUpkeep(tables.catalog, UpkeepTerms(files_min=2)).keep("orders", 1 << 50)
        assert report.rewritten.replaced == 2

        tables.catalog.catalog.rename_table("headrace.orders_dead_letters", "headrace.other")
        await running.turns()
        assert running.follower.last["orders"].condition is Condition.FOLLOWING
        assert [row["item"] for row in tables.found()] == [1, 2, 3, 4]
        assert [offset for _, offset, *_ in tables.dead()] == [2]
        assert tables.load("other").metadata.table_uuid == foreign.metadata.table_uuid


OTHER = {"cluster-id": "c", "topic-id": "00000000-0000-0000-0000-000000000007", "start": "earliest"}


async def test_a_blocked_table_can_be_dropped_and_the_other_stays(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=JSON)
    tables.catalog.catalog.create_table("headrace.orders_dead_letters", tables.load().schema())
    await world.commit((key, batch(b"{")))
    assert (await tables.follow()).condition is Condition.BLOCKED
    tables.catalog.drop("orders", purge=True)
    assert tables.catalog.names() == ["orders_dead_letters"]


async def test_configs_give_no_table_the_name_of_dead_letters(world: ScanWorld, tables: Tables) -> None:
    await world.topic("orders-Dead-Letters", 1)
    await world.topic("x", 1)
    await configure(world, "orders-Dead-Letters", enable="true")
    await configure(world, "x", enable="true", name="y_dead_letters")
    async with role(tables) as running:
        await running.turns()
        assert tables.catalog.names() == []
        assert "names with _dead_letters at the end" in running.follower.refused["orders-Dead-Letters"]
        assert running.follower.refused.keys() == {"orders-Dead-Letters", "x"}
        reasons = {row["topic"]: row["reason"] for row in await running.commands.rows()}
        assert "names with _dead_letters at the end" in reasons["x"]


def answered(status: int) -> exceptions.RESTError:
    """Return what pyiceberg raises for this status."""
    response = requests.Response()
    response.status_code = status
    error = exceptions.RESTError(f"HTTP {status}")
    error.__cause__ = requests.HTTPError(response=response)
    return error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (exceptions.ForbiddenError("this token may not write"), RefusedError),
        (exceptions.UnauthorizedError("who are you"), RefusedError),
        (answered(422), RefusedError),
        (answered(404), RefusedError),
        (exceptions.TooManyRequestsError("slow down"), ThrottledError),
        (answered(429), ThrottledError),
    ],
    ids=["403", "401", "422", "404", "429", "other 429"],
)
async def test_a_definite_refusal_leaves_no_file(
    world: ScanWorld, tables: Tables, error: Exception, raised: type[Exception]
) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    await world.write(key, 1)
    with mock.patch.object(SqlCatalog, "commit_table", side_effect=error), pytest.raises(raised):
        await tables.round()
    assert tables.files() == set()
    await tables.follow()
    await tables.check()


@pytest.mark.parametrize("error", [exceptions.ServiceUnavailableError("503"), answered(408), OSError("reset")])
async def test_without_a_definite_answer_files_stay_and_the_next_round_waits(
    world: ScanWorld, tables: Tables, error: Exception
) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    await world.write(key, 1)

    def took_effect(self: Any, *args: Any) -> None:
        commit(self, *args)
        raise error

    commit = SqlCatalog.commit_table
    with mock.patch.object(SqlCatalog, "commit_table", took_effect):
        done = await tables.round()
    assert (done.outcome, done.has_more) == (CommitOutcome.UNKNOWN, False)
    await tables.follow()
    await tables.check()


async def test_a_round_that_fails_is_in_the_metrics(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await configure(world, "orders", enable="true")
    await world.write(key, 1)
    async with role(tables) as running:
        await running.turns()
        assert (metric(running, "following"), metric(running, "lag", partition="0")) == (1, 0)
        await world.write(key, 2)
        refusal = exceptions.ForbiddenError("this token may not write")
        with mock.patch.object(Failing, "commit_table", side_effect=refusal):
            await running.turns()
            running.clock.jump(100)
            await running.turns()
        assert (metric(running, "following"), metric(running, "lag", partition="0")) == (0, 3)
        assert metric(running, "lag_seconds", partition="0") == 100
        with mock.patch.object(type(tables.catalog), "load", side_effect=refusal):
            running.clock.jump(100)
            await running.turns()
        assert metric(running, "lag_seconds", partition="0") == 200, "as far as it is known"
        running.clock.jump(100)
        await running.turns()
        assert (metric(running, "following"), metric(running, "lag", partition="0")) == (1, 0)


async def test_timestamps_of_the_future_hide_no_wait(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    await world.commit((key, batch(b"x", time_ms=4_000_000_000_000)))
    async with tables.worker() as worker:
        look = await worker.tables.look("orders")
        now_ms = look.table.metadata.last_updated_ms
        hour = 3_600_000
        assert hour <= (await waited_ms(world.postgres.index, look, now_ms + 2 * hour) or 0) <= 2 * hour


async def test_the_table_of_a_deleted_topic_is_kept_by_choice(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await configure(world, "orders", enable="true")
    await world.write(key, 1)
    async with role(tables) as running:
        await running.turns()
        with pytest.raises(OptionError, match="topic orders exists"):
            await running.commands.detach("orders", with_upkeep=True)
        topic_id = (await load_image(world.postgres.cluster)).topics_by_name["orders"].topic_id
        await world.postgres.topics.delete_topics(await world.postgres.cluster.metadata_head(), [topic_id])
        await running.turns()
        assert running.follower.last["orders"].condition is Condition.STOPPED
        level, found = told(await running.commands.rows())["stopped"]
        assert level == "bad"
        assert "headrace tables detach orders" in found
        with pytest.raises(OptionError, match="no topic to follow"):
            await running.commands.resume("orders", "rows")

        await running.commands.detach("orders", with_upkeep=False)
        await running.turns()
        assert running.follower.last["orders"].condition is Condition.DETACHED
        assert metric(running, "following") is None
        assert told(await running.commands.rows()) == {
            "following": ("ok", mock.ANY),
            "detached": ("ok", "1 tables are kept without a topic "),
        }
        jobs = UpkeepJobs(running.follower.worker.tables, mock.Mock(), mock.Mock(), running.clock)
        assert not await jobs._is_kept("orders")
        await running.commands.detach("orders", with_upkeep=True)
        assert await jobs._is_kept("orders")
        await running.commands.alter("orders", retention_ms=1)
        report = TableUpkeep(tables.catalog, UpkeepTerms()).keep("orders", 1 << 50)
        assert report.deleted.rows == 3
        assert tables.load().properties[DETACHED] == "upkeep"
        with pytest.raises(OptionError, match="no topic to follow"):
            await running.commands.resume("orders", None)


async def test_a_role_that_may_create_no_namespace_uses_one_that_is_there(world: ScanWorld, tables: Tables) -> None:
    await world.topic("orders", 1)
    refusal = exceptions.ForbiddenError("may not create namespaces")
    with (
        mock.patch.object(SqlCatalog, "create_namespace", side_effect=refusal),
        pytest.raises(RefusedError, match="may not create namespaces"),
    ):
        await tables.create("orders")
    tables.catalog.catalog.create_namespace("headrace")
    with mock.patch.object(SqlCatalog, "create_namespace", side_effect=refusal):
        await tables.create("orders")
