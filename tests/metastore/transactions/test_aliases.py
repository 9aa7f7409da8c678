"""A topic halves under transactional producers: what they add as a child, and send to its alias, is in the parent."""

from __future__ import annotations

import pytest

from headrace.metastore.api.commit import BatchOutcome, BatchTransaction
from headrace.metastore.api.transactions import TransactionVerdict
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.transaction_markers import marker_of
from tests.metastore.commit_scenes import appended, batch
from tests.metastore.halving_scenes import HalvingScene, open_halving_scene
from tests.metastore.sessions import Session
from tests.metastore.transactions.transaction_scenes import RECORDS, Producer, read

DONE = TransactionVerdict.DONE
REFUSED = [(BatchOutcome.INVALID_TXN_STATE, -1)]


@pytest.fixture
async def scene(metastore: PostgresMetastore, raw: Session) -> HalvingScene:
    """A topic that doubled from two partitions to four."""
    scene = await open_halving_scene(metastore, raw)
    await scene.double()
    return scene


async def send_to_alias(producer: Producer, scene: HalvingScene) -> list[tuple[BatchOutcome, int]]:
    """One batch for partition 2, as an agent stages it: for its parent."""
    kind = BatchTransaction.ANY_PARTITION if producer.bumps else BatchTransaction.ADDED
    sent = batch(
        scene.keys[0],
        producer.sequences.get(2, 0),
        RECORDS,
        producer=producer.who.producer_id,
        epoch=producer.who.epoch,
        transaction=kind,
        alias=2,
    )
    found = await scene.outcomes(sent)
    if found[0][0] is BatchOutcome.APPENDED:
        producer.sequences[2] = producer.sequences.get(2, 0) + RECORDS
    return found


async def merged(scene: HalvingScene) -> bool:
    """Return whether the children are aliases now."""
    await scene.begin()
    await scene.pause()
    return await scene.merge()


@pytest.mark.parametrize("bumps", [False, True])
@pytest.mark.parametrize("before", [False, True])
async def test_what_is_added_as_an_alias_is_its_parent(scene: HalvingScene, bumps: bool, before: bool) -> None:
    """Added before the merge, or after it, by a producer that knows the higher count."""
    producer = Producer(scene, "copy", bumps)
    await producer.init()
    if before:
        assert await producer.add(2) is DONE
    assert await merged(scene)
    if not before and not bumps:
        assert await send_to_alias(producer, scene) == REFUSED
        assert await producer.add(2) is DONE
    assert await send_to_alias(producer, scene) == appended(0)
    assert (await read(scene, 0)).first_open_offset == 0
    assert await producer.end(commits=False) is DONE
    found = await read(scene, 0)
    assert [marker_of(extent.source) is not None for extent in found.extents] == [False, True]
    assert [(one.first_offset, one.last_offset) for one in found.aborted] == [(0, RECORDS)]
    assert (await read(scene, 2)).extents == [], "the alias is as it was"


async def test_a_child_with_records_of_an_open_transaction_is_not_merged(scene: HalvingScene) -> None:
    producer = Producer(scene, "copy")
    await producer.init()
    assert await producer.send(2) == appended(0)
    assert not await merged(scene)
    assert await producer.end() is DONE
    assert await scene.merge()
    assert len((await read(scene, 2)).extents) == 2


async def test_only_an_end_that_ends_the_epoch_says_how_records_of_an_alias_ended(scene: HalvingScene) -> None:
    """A producer counts its records for the parent and for the alias separately."""
    for bumps in (False, True):
        producer = Producer(scene, f"copy-{bumps}", bumps)
        await producer.init()
        if not bumps:
            assert await merged(scene)
            await producer.add(0, 2)
        await producer.send(0)
        await send_to_alias(producer, scene)
        who = producer.who
        await producer.end()
        ended = [one.outcome for one in await scene.store.outcomes.ended_transactions(100) if one.outcome is not None]
        mine = [one for one in ended if one.producer_id == who.producer_id]
        assert [(one.epoch, one.end_sequence) for one in mine] == ([(who.epoch, 2**31 - 1)] if bumps else [])
