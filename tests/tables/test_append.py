"""A table has each committed record once, follows what its topic does, and says what it cannot follow."""

from __future__ import annotations

import asyncio
import re

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.metastore.log.snapshot import load_image
from headrace.scan.errors import OptionError
from headrace.storage.errors import AlreadyExistsError, NotFoundError
from headrace.tables.catalog import RETRIES, view_of
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.errors import TableError
from headrace.tables.looking import Condition
from headrace.tables.open_tables import Choice, decide
from headrace.tables.state import PROGRESS, Follows, definition_of, standing_of
from tests.spark.world import ScanWorld, records
from tests.tables.history import expire_all_but_the_newest, rewrite
from tests.tables.world import Tables, from_a_thread
from tests.transactional_world import Truth, Writer, send

pytestmark = pytest.mark.requirement("X11")


async def test_a_table_follows_its_topic(world: ScanWorld, tables: Tables) -> None:
    a, b = await world.topic("orders", 2)
    await world.commit((a, records(1)), (b, records(1, 2)))
    await tables.create("orders")
    done = await tables.follow()
    assert done.condition is Condition.FOLLOWING
    assert not any(done.lag.values())
    await tables.check()
    await world.compact(1)
    (c,) = (await world.grow("orders", 3))[2:]
    await world.commit((a, records(9)), (c, records(9)))
    await tables.follow(chunk_bytes=1)
    await tables.check()
    assert (await tables.round()).outcome is None
    assert not await world.pins()


async def test_a_table_begins_at_its_start(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await world.write(key, 1)
    await world.write(key, 1_000)
    await tables.create("orders", "latest", name="newer")
    await tables.create("orders", str(1_700_000_000_000 + 1_000_000), name="since")
    for name in ("newer", "since"):
        await tables.round(name)
    await world.write(key, 2)
    for name, first in (("newer", 6), ("since", 3)):
        await tables.follow(name)
        assert [row.offset for row in tables.rows(name)] == list(range(first, 9))


async def test_an_open_transaction_holds_the_table_back(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    truth = Truth()
    writer = Writer(world, truth, "copy")
    await writer.begin()
    await send(world, truth, key, [("a", "plain")])
    await writer.send(key, ("a", "aborted"))
    await writer.end(commits=False)
    await writer.send(key, ("a", "open"))
    await send(world, truth, key, [("b", "behind")])
    done = await tables.follow()
    assert not any(done.lag.values()), "what is not committed is no lag"
    assert [row.value for row in tables.rows()] == [b"plain"]
    await writer.end(commits=True)
    await tables.follow()
    assert [row.value for row in tables.rows()] == [b"plain", b"open", b"behind"]
    assert [row.offset for row in tables.rows()] == [0, 3, 4]


async def test_what_retention_removed_before_is_named_as_a_gap(world: ScanWorld, tables: Tables) -> None:
    a, b = await world.topic("orders", 2)
    await tables.create("orders")
    await world.commit((a, records(1)), (b, records(1)))
    await tables.follow()
    await world.commit((a, records(2)), (b, records(2)))
    await world.delete_records(a, 5)
    await world.delete_records(b, 6)
    done = await tables.round()
    assert done.missing == 5
    standing = standing_of(view_of(tables.load()))
    assert isinstance(standing, Follows)
    assert [(gap.partition, gap.start, gap.end) for gap in standing.progress.gaps] == [(0, 3, 5), (1, 3, 6)]
    assert [(row.partition, row.offset) for row in tables.rows()] == [
        (0, 0), (0, 1), (0, 2), (0, 5), (1, 0), (1, 1), (1, 2)
    ]  # fmt: skip


async def test_a_topic_that_was_created_again_is_another_topic(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await world.write(key, 1)
    await tables.create("orders")
    await tables.follow()
    image = await load_image(world.postgres.cluster)
    await world.postgres.topics.delete_topics(
        await world.postgres.cluster.metadata_head(), [image.topics_by_name["orders"].topic_id]
    )
    done = await tables.round()
    assert (done.condition, done.reason[:21]) == (Condition.STOPPED, "the topic was deleted")
    (again,) = await world.topic("orders", 1)
    await world.write(again, 2)
    done = await tables.round()
    assert done.condition is Condition.STOPPED
    assert "created again" in done.reason
    assert len(tables.rows()) == 3


@pytest.mark.parametrize("choice", [Choice.ROWS, Choice.OFFSETS])
async def test_a_rollback_is_recognised_and_a_user_says_how_to_go_on(
    world: ScanWorld, tables: Tables, choice: Choice
) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    for number in range(3):
        await world.write(key, number)
        await tables.follow()
    snapshots = [entry.snapshot_id for entry in tables.load().history()]
    tables.load().manage_snapshots().rollback_to_snapshot(snapshots[2]).commit()
    await world.write(key, 3)
    done = await tables.round()
    assert done.condition is Condition.STOPPED
    assert "rolled back" in done.reason
    await asyncio.to_thread(rewrite, tables.load())
    await asyncio.to_thread(expire_all_but_the_newest, tables.load())
    assert (await tables.round()).condition is Condition.STOPPED, "also once history has expired"
    if choice is Choice.ROWS:
        with pytest.raises(OptionError, match="where to continue"):
            decide(tables.load(), choice)  # no snapshot of ours is left that says it
        return
    with pytest.raises(OptionError, match="where to continue"):
        decide(tables.load(), Choice.LOG)
    decide(tables.load(), choice)
    await tables.follow()
    assert [row.offset for row in tables.rows()] == [0, 1, 2, 3, 4, 5, 9, 10, 11]
    with pytest.raises(OptionError, match="nothing to decide"):
        decide(tables.load(), choice)


async def test_what_was_rolled_back_is_appended_again(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    for number in range(3):
        await world.write(key, number)
        await tables.follow()
    snapshots = [entry.snapshot_id for entry in tables.load().history()]
    tables.load().manage_snapshots().rollback_to_snapshot(snapshots[2]).commit()
    decide(tables.load(), Choice.ROWS)
    await tables.follow()
    await tables.check()


async def test_two_rewrites_and_the_expiry_of_all_else_change_nothing(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await world.write(key, 1)
    await tables.follow()
    for _ in range(2):
        await asyncio.to_thread(rewrite, tables.load())
    await asyncio.to_thread(expire_all_but_the_newest, tables.load())
    assert len(tables.load().snapshots()) == 1
    await world.write(key, 2)
    await tables.follow()
    await tables.check()


async def test_files_of_a_failed_commit_are_removed(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    await world.write(key, 1)
    other = Tables(world, tables.folder)
    tables.failing.before_commit = from_a_thread(other.round)
    assert (await tables.round()).outcome is CommitOutcome.CONFLICT
    assert len(tables.files()) == 1
    await tables.check()


async def test_files_of_a_commit_without_an_answer_are_removed_once_it_cannot_happen(
    world: ScanWorld, tables: Tables
) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    await world.write(key, 1)
    async with tables.worker() as worker:
        tables.failing.next_failure = "away"
        assert (await worker.keep("orders")).outcome is CommitOutcome.UNKNOWN
        assert len(tables.files()) == 1, "it may still happen"
        assert (await worker.keep("orders")).outcome is CommitOutcome.COMMITTED
        assert len(tables.files()) == 1
        await world.write(key, 2)
        tables.failing.next_failure = "lost"
        assert (await worker.keep("orders")).outcome is CommitOutcome.UNKNOWN
        assert (await worker.keep("orders")).outcome is None, "it did happen"
        await world.write(key, 3)
        await worker.keep("orders")
    assert len(tables.files()) == 3
    await tables.check()


async def test_the_retry_stays_off_if_a_user_sets_it(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    tables.catalog.set_property("orders", RETRIES, "4")
    await world.write(key, 1)
    other = Tables(world, tables.folder)
    tables.failing.before_commit = from_a_thread(other.round)
    assert (await tables.round()).outcome is CommitOutcome.CONFLICT
    await tables.check()


async def test_bad_input_is_named_and_changes_nothing(world: ScanWorld, tables: Tables) -> None:
    await world.topic("orders", 1)
    await tables.create("orders")
    with pytest.raises(AlreadyExistsError):
        await tables.create("orders")
    with pytest.raises(OptionError, match="cannot partition by month"):
        await tables.create("orders", layout=["month"], name="other")
    with pytest.raises(OptionError, match=re.escape(RETRIES)):
        await tables.create("orders", name="other", **{RETRIES: "4"})
    for name in ("a.b", "a/b", "", "a b", "x" * 201):
        with pytest.raises(OptionError, match="a table's name has"):
            tables.catalog.create(name, definition_of(tables.load().properties), (), {})  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        await tables.round("other")
    tables.catalog.catalog.create_table("headrace.foreign", tables.load().schema())
    with pytest.raises(TableError, match="Headrace did not create it"):
        await tables.round("foreign")
    with pytest.raises(TableError, match="Headrace did not create it"):
        tables.catalog.drop("foreign", purge=True)
    await tables.follow()
    tables.catalog.set_property("orders", PROGRESS, "{")
    with pytest.raises(TableError, match=PROGRESS):
        await tables.round()
    tables.catalog.set_property("orders", PROGRESS, "")
    assert (await tables.round()).condition is Condition.STOPPED, "it does not begin again"


async def test_a_paused_table_waits(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    tables.catalog.set_property("orders", "headrace.paused", "maintenance")
    await world.write(key, 1)
    done = await tables.round()
    assert (done.condition, done.reason, dict(done.lag)) == (Condition.PAUSED, "maintenance", {0: 3})
    tables.catalog.set_property("orders", "headrace.paused", "")
    await tables.follow()
    await tables.check()
