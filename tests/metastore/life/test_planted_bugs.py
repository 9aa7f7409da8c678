"""The proofs of a life fail when a rule of it is broken: each named bug is planted in SQL or Python and must be seen.

A life is begun here by an operator on one server, so that no standby is needed; test_promotion.py has the standbys.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.commit import BatchOutcome, BatchTransaction
from headrace.metastore.api.life import ServerLife
from headrace.metastore.api.read import NONE_OPEN, EpochQuery, ExtentQuery, OffsetKind, OffsetQuery
from headrace.metastore.api.transactions import NO_PRODUCER, TransactionVerdict
from headrace.metastore.life import keeper as keeper_module
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.numbers import NO_LIFE, epoch_floor, log_floor
from headrace.metastore.life.verdict import LifeVerdict, judge
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import batch, file_of
from tests.metastore.life.test_verdict import PRIMARY, REACHED, RECORD, newer
from tests.metastore.sessions import create, join, new_topic
from tests.metastore.sql_sources import plant

pytestmark = pytest.mark.requirement("X4")


async def two_processes(url: str) -> tuple[PostgresMetastore, LifeKeeper, PostgresMetastore, LifeKeeper]:
    """Return the two processes on one server and one bucket."""
    bucket = MemoryStore(ManualClock())
    first, second = [await PostgresMetastore.open(url, Settings(metastore_pool_size=1)) for _ in range(2)]
    keepers = [
        LifeKeeper(store.life, bucket, ManualClock(), random.Random(n)) for n, store in enumerate((first, second))
    ]
    for keeper in keepers:
        assert await keeper.check() is LifeVerdict.CURRENT
    return first, keepers[0], second, keepers[1]


async def nothing_again(url: str) -> None:
    """Numbers of the new life are above those of the old one, and the old life's writer is refused."""
    old, _, new, keeper = await two_processes(url)
    try:
        topic = (await create(old, new_topic("old", 2))).topics_by_name["old"]
        ids, agent = await old.commits.allocate_producer_ids(10), await join(old)
        claim = await old.groups.claim_group("g", *agent)
        who = (await old.transactions.init_producer("copy", 60_000, NO_PRODUCER, ids.start)).producer
        data = batch(topic.key(1) or 0, 0, producer=who.producer_id, transaction=BatchTransaction.ANY_PARTITION)
        (answer,) = await old.commits.commit_files(*agent, [file_of([data])])
        assert answer.batches[0].outcome is BatchOutcome.APPENDED
        assert await keeper.begin_anew("restored") == 1
        with pytest.raises(UnavailableError):
            await old.commits.allocate_producer_ids(10)
        with pytest.raises(UnavailableError):
            await create(old, new_topic("of the old life"))
        image = await create(new, new_topic("new"))
        assert image.topics_by_name["new"].topic_number >= log_floor(1) > topic.topic_number
        assert set(image.topics_by_name["old"].leader_epochs) == {epoch_floor(1)}
        (newest,) = await new.index.list_offsets([OffsetQuery(topic.key(0) or 0, OffsetKind.LATEST)])
        assert newest.leader_epoch == epoch_floor(1)
        ends = await new.index.find_epoch_ends([EpochQuery(topic.key(0) or 0, 0)])
        assert (ends[0].leader_epoch, ends[0].end_offset) == (0, 0), "readers of the old epoch are sent back"
        assert (await new.commits.allocate_producer_ids(10)).start >= 1 << 40 > ids.start
        (found,) = await new.index.find_extents([ExtentQuery(topic.key(1) or 0, 0, 1 << 40)])
        assert (found.first_open_offset, len(found.aborted)) == (NONE_OPEN, 1), "an open transaction is aborted"
        ended = await new.transactions.end_transaction(
            "copy", who, commits=True, bumps=False, new_producer_id=ids.start + 1
        )
        assert ended.verdict is TransactionVerdict.UNKNOWN_PRODUCER
        again = await new.groups.claim_group("g", *agent)
        assert claim is not None
        assert again is not None
        assert again.coordinator_epoch > 1 << 40 > claim.coordinator_epoch
    finally:
        await old.close()
        await new.close()


async def test_nothing_is_handed_out_again(metastore_url: str) -> None:
    await nothing_again(metastore_url)


async def stored_stays_stored(url: str) -> None:
    """A retry that many batches overtook is known in each later life: it continues what this server has."""
    old, _, new, keeper = await two_processes(url)
    try:
        key = (await create(old, new_topic("t"))).topics_by_name["t"].key(0) or 0
        agent = await join(old)
        await old.commits.commit_files(*agent, [file_of([batch(key, sequence) for sequence in range(0, 40, 5)])])
        for life in (1, 2):
            assert await keeper.begin_anew("restored") == life
            agent = await join(new)
            again = [batch(key, 0), batch(key, 45), batch(key, 35 + 5 * life)]
            (answer,) = await new.commits.commit_files(*agent, [file_of(again)])
            outcomes = [BatchOutcome.DUPLICATE_SEQUENCE, BatchOutcome.OUT_OF_ORDER, BatchOutcome.APPENDED]
            if life == 2:
                outcomes[1:] = [BatchOutcome.APPENDED, BatchOutcome.DUPLICATE]
            assert [judged.outcome for judged in answer.batches] == outcomes
    finally:
        await old.close()
        await new.close()


@pytest.mark.requirement("W7")
async def test_what_was_stored_before_a_restore_is_known(metastore_url: str) -> None:
    await stored_stays_stored(metastore_url)


async def test_a_life_that_knows_only_what_it_stored_itself_is_caught(metastore_url: str) -> None:
    right, wrong = "s.contiguous_life BETWEEN 0 AND cluster_life()", "s.contiguous_life = cluster_life()"
    plant(metastore_url, "fold_producers", right, wrong)
    with pytest.raises(AssertionError):
        await stored_stays_stored(metastore_url)


async def _all_connections_of_a_process_are_in_its_life(url: str, name_for: Callable[..., None]) -> None:
    writer, keeper, operator, operators = await two_processes(url)
    worker = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    try:
        name_for(keeper, worker.life)
        await worker.commits.allocate_producer_ids(1)
        await operators.begin_anew("restored")
        with pytest.raises(UnavailableError):
            await worker.commits.allocate_producer_ids(1)
        assert await keeper.check() is LifeVerdict.CURRENT
        assert await worker.commits.allocate_producer_ids(1)
        await operators.begin_anew("restored")
        superseded = replace(await writer.life.describe_life(), life=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer.life, "describe_life", lambda: _answer(superseded))
            assert await keeper.check() is LifeVerdict.SUPERSEDED
        assert (writer.life.named_life, worker.life.named_life) == (NO_LIFE, NO_LIFE)
    finally:
        for store in (writer, operator, worker):
            await store.close()


async def _answer(found: ServerLife) -> ServerLife:
    return found


async def test_one_check_holds_for_all_connections_of_a_process(metastore_url: str) -> None:
    await _all_connections_of_a_process_are_in_its_life(metastore_url, LifeKeeper.name_for)


async def test_a_worker_that_keeps_the_life_it_began_in_is_caught(metastore_url: str) -> None:
    with pytest.raises((AssertionError, UnavailableError)):
        await _all_connections_of_a_process_are_in_its_life(
            metastore_url, lambda keeper, worker: worker.name_life(worker.named_life)
        )


SQL_BUGS = {
    "the life is not compared": ("assert_life", "WHERE life = p_life AND timeline", "WHERE timeline"),
    "ids do not begin at the life's first": (
        "allocate_producer_ids",
        "life_floor64(cluster_life())",
        "0",
    ),
    "the log goes on where it was": ("begin_life", "bigint := life_floor_log(p_life)", "bigint := p_expected_head"),
    "leader epochs stay": ("begin_life", "greatest(leader_epoch + 1, life_floor32(p_life))", "leader_epoch"),
    "transactions stay": ("begin_life", "    PERFORM forget_transactions();", ""),
    "open transactions are forgotten": ("forget_transactions", "PERFORM append_markers(", "PERFORM concat("),
    "claims go on where they were": ("begin_life", "PERFORM setval(", "PERFORM concat("),
}


@pytest.mark.parametrize("bug", SQL_BUGS)
async def test_a_planted_bug_in_sql_is_caught(metastore_url: str, bug: str) -> None:
    plant(metastore_url, *SQL_BUGS[bug])
    with pytest.raises((AssertionError, pytest.fail.Exception, KeyError)):
        await nothing_again(metastore_url)


def _table(judged: Callable[..., LifeVerdict]) -> bool:
    """Return whether a judge gives the right answers to the cases that the planted bugs are about."""
    promoted = replace(PRIMARY, server=PRIMARY.server._replace(timeline=4))
    used = msgspec.structs.replace(REACHED, life=newer().life)
    return (
        judged(promoted, RECORD, REACHED) is LifeVerdict.BEGIN
        and judged(replace(promoted, prepared=newer().incarnation_id), newer(), used) is LifeVerdict.RESTORED
        and judged(PRIMARY, newer(), None) is LifeVerdict.SUPERSEDED
        and judged(PRIMARY, newer(4), None) is LifeVerdict.SUPERSEDED
        and judged(replace(PRIMARY, wal_bytes=2_000, feed_sum=49), RECORD, REACHED) is LifeVerdict.RESTORED
        and judged(PRIMARY, RECORD, REACHED) is LifeVerdict.CURRENT
    )


JUDGES: dict[str, Callable[..., LifeVerdict]] = {
    "a promotion is not noticed": lambda found, newest, reached: judge(
        replace(found, server=found.begun_on), newest, reached
    ),
    "the bucket is not asked": lambda found, newest, reached: judge(found, RECORD, reached),
    "one number is one life": lambda found, newest, reached: judge(
        found, newest and replace_incarnation(newest), reached
    ),
    "a copy finishes the life of its original": lambda found, newest, reached: judge(
        replace(found, prepared=None), newest, reached
    ),
    "what was reached is not compared": lambda found, newest, reached: judge(found, newest, None),
}


def replace_incarnation(record: object) -> object:
    """The record as if only its number counted."""

    return msgspec.structs.replace(record, incarnation_id=PRIMARY.incarnation_id)


@pytest.mark.parametrize("bug", JUDGES)
def test_a_planted_bug_in_the_verdict_is_caught(bug: str) -> None:
    assert _table(judge)
    assert not _table(JUDGES[bug])


async def test_a_server_is_asked_after_the_bucket(metastore_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug asks the server first: a life that begins in between looks like a wrong bucket."""
    first, keeper, second, other = await two_processes(metastore_url)
    read = keeper_module.newest_life

    async def begun_in_between(*arguments: object) -> object:
        found = await read(*arguments)  # type: ignore[arg-type]
        if (await second.life.describe_life()).life == 0:
            monkeypatch.setattr(keeper_module, "newest_life", read)
            await other.begin_anew("restored")
        return found

    monkeypatch.setattr(keeper_module, "newest_life", begun_in_between)
    assert await keeper.check() is LifeVerdict.CURRENT
    assert first.life.named_life == 1
    for store in (first, second):
        await store.close()
