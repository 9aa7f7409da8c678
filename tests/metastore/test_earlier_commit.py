"""The commit of agents of the release before does and answers what the same call does with a column for each number.

Both calls are made on the same rows, in transactions that are undone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest

from headrace.metastore.api.agents import RegisteredAgent
from headrace.metastore.api.commit import BatchOutcome, BatchTransaction, FileCommit, MovedKeys, StagedBatch
from headrace.metastore.postgres.commit import commit
from headrace.metastore.postgres.commit.commit import Staged
from headrace.metastore.postgres.commit.grouping import FEW_BATCHES, Columns, group_few
from headrace.metastore.postgres.sql_files import Signature, signatures
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError
from tests.metastore.commit_scenes import batch, file_of, open_scene
from tests.metastore.earlier_agent import earlier_parameters, earlier_signature
from tests.metastore.halving_scenes import HalvingScene, open_halving_scene
from tests.metastore.sessions import Session
from tests.metastore.sql_sources import broken
from tests.metastore.transactions.transaction_scenes import Producer, open_transactions

pytestmark = pytest.mark.requirement("X9")
CALLS = 60
LEFT = """
SELECT array(SELECT (partition_key, high_watermark, first_open_offset, max_timestamp, open_extents, open_max_timestamp,
                     appended_bytes)::text FROM partition_heads ORDER BY 1),
       array(SELECT (partition_key, producer_id, epoch, next_sequence, ring, contiguous_life, wrapped)::text
               FROM producer_state ORDER BY 1),
       array(SELECT (partition_key, base_offset, last_offset)::text FROM extents ORDER BY 1),
       array(SELECT (parent_key, producer_id, has_switched)::text FROM split_producers ORDER BY 1),
       array(SELECT (child_key, producer_id, has_switched)::text FROM merge_producers ORDER BY 1),
       array(SELECT (producer_id, partition_key, first_offset)::text FROM transaction_partitions ORDER BY 1),
       array(SELECT answer FROM commit_answers ORDER BY 1)
"""


@pytest.fixture
async def scene(metastore: PostgresMetastore, raw: Session) -> HalvingScene:
    """A topic with two parents and two children."""
    found = await open_halving_scene(metastore, raw)
    await found.double(sets_boundaries=False)
    return found


async def merged(scene: HalvingScene) -> None:
    """Make the children aliases."""
    for split in await scene.store.topics.quiet_splits(99):
        assert await scene.store.topics.set_split_boundary(
            scene.controller_epoch, await scene.store.cluster.metadata_head(), split
        )
    await scene.begin()
    await scene.pause()
    assert await scene.merge()


def _batch(rng: random.Random, scene: HalvingScene, writer: Producer) -> StagedBatch:
    key = rng.choice(scene.keys)
    fields: dict[str, Any] = {"leader_epoch": rng.choice((-1, -1, -1, 0, 1))}
    match rng.randrange(4):
        case 0:
            fields |= {"keys": rng.choice((MovedKeys.STAY, MovedKeys.MOVED))}
        case 1:
            fields |= {"alias": rng.choice((0, 2, 3))}
        case 2:
            fields |= {"partition_count": rng.choice((2, 4))}
    if rng.random() < 0.4:
        fields |= {"transaction": rng.choice((BatchTransaction.ADDED, BatchTransaction.ANY_PARTITION))}
        epoch = writer.who.epoch + rng.choice((0, 0, 0, 1))
        return batch(key, rng.choice((0, 0, 5)), producer=writer.who.producer_id, epoch=epoch, **fields)
    return batch(key, rng.choice((-1, 0, 0, 5)), producer=rng.choice((7, 8)), **fields)


async def _ask(
    agent: RegisteredAgent, store: PostgresMetastore, signature: Signature, parameters: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The answer, and what the call would leave."""
    given = {
        **parameters,
        "node_id": agent.node_id,
        "broker_epoch": agent.broker_epoch,
        "producer_expiration_ms": store.cluster.settings.producer_id_expiration_ms,
        "life": store.pool.life,
    }
    async with store.pool.connection() as connection, connection.transaction(force_rollback=True):
        answer = await (await connection.execute(signature.call_in_life.encode(), given)).fetchall()
        left = await (await connection.execute(LEFT.encode())).fetchall()
        return answer, left


async def _differences(scene: HalvingScene, seed: int, *, most: int = CALLS) -> tuple[int, set[BatchOutcome]]:
    """Return how many random calls differ, and which outcomes all calls had. Ends with the difference number `most`."""
    rng = random.Random(seed)
    writer = await open_transactions(scene.store)
    outcomes: set[BatchOutcome] = set()
    differences = 0
    for _ in range(CALLS):
        files: list[FileCommit] = [
            file_of([_batch(rng, scene, writer) for _ in range(rng.choice((1, 1, 2, 4)))])
            for _ in range(rng.randint(1, 2))
        ]
        asked = scene.agent, scene.store
        now = await _ask(*asked, signatures()["commit_files"], Staged(files).parameters())
        before = await _ask(*asked, earlier_signature(), earlier_parameters(files))
        differences += now != before
        if differences == most:
            break
        staged = Staged(files)
        for number, (_, packed) in enumerate(now[0]):
            outcomes |= {answer.outcome for answer in staged.answers(number, packed)}
    return differences, outcomes


async def test_both_signatures_do_the_same_while_a_topic_doubles(scene: HalvingScene) -> None:
    differences, outcomes = await _differences(scene, 1)
    assert differences == 0
    assert outcomes >= {BatchOutcome.APPENDED, BatchOutcome.SENT_BACK, BatchOutcome.INVALID_TXN_STATE}


async def test_both_signatures_do_the_same_for_aliases(scene: HalvingScene) -> None:
    await merged(scene)
    differences, outcomes = await _differences(scene, 2)
    assert differences == 0
    assert outcomes >= {BatchOutcome.APPENDED, BatchOutcome.SENT_BACK, BatchOutcome.PRODUCER_FENCED}


async def accepted_calls(store: PostgresMetastore, seed: int) -> int:
    """Return in how many of some calls of which every batch is accepted the layouts of Python and SQL differ."""
    rng, differences = random.Random(seed), 0
    scene = await open_scene(store, partitions=3)
    sequences: dict[tuple[int, int], int] = {}
    for _ in range(CALLS // 2):
        files = []
        for _ in range(rng.randint(1, 2)):
            count = rng.choice((1, 2, FEW_BATCHES // 2, FEW_BATCHES))
            batches = []
            for _place in range(count):
                key, producer, records = rng.choice(scene.keys), rng.choice((-1, 7, 7, 8)), rng.randint(1, 3)
                sequence = sequences.get((key, producer), 0) if producer >= 0 else -1
                sequences[key, producer] = sequence + records
                stamp = rng.choice((-1, 0, 5, 1 << 62))
                batches.append(batch(key, sequence, records, producer=producer, max_timestamp=stamp))
            files.append(file_of(batches))
        asked = scene.agent, store
        now = await _ask(*asked, signatures()["commit_files"], Staged(files).parameters())
        before = await _ask(*asked, earlier_signature(), earlier_parameters(files))
        differences += now != before
        for answer in await scene.commit(*files):
            assert {told.outcome for told in answer.batches} == {BatchOutcome.APPENDED}
    return differences


async def test_accepted_calls_have_one_layout_in_python_and_sql(metastore: PostgresMetastore) -> None:
    assert await accepted_calls(metastore, 3) == 0


LAID_OUT_WRONGLY = {
    "records of the last batch only": ("part_records", lambda c: c.part_records[-1:] * len(c.part_records)),
    "a run is not counted": ("part_extents", lambda c: [1] * len(c.part_extents)),
    "bytes of the last partition": ("part_bytes", lambda c: c.part_bytes[-1:] * len(c.part_bytes)),
    "the timestamp of the last partition": ("part_time", lambda c: c.part_time[-1:] * len(c.part_time)),
    "one batch less in each ring": ("prod_recent", lambda c: [max(at - 1, 1) for at in c.prod_recent]),
    "a ring without sequences": ("ring", lambda c: bytes(len(c.ring))),
}


@pytest.mark.parametrize("bug", LAID_OUT_WRONGLY)
async def test_a_column_that_is_laid_out_wrongly_is_found(
    metastore: PostgresMetastore, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    name, wrong = LAID_OUT_WRONGLY[bug]

    def grouped(files: Sequence[FileCommit]) -> Columns:
        columns = group_few(files)
        return columns._replace(**{name: wrong(columns)})

    monkeypatch.setattr(commit, "group_few", grouped)
    with pytest.raises((AssertionError, psycopg.Error, HeadraceError)):  # layouts or answers differ, or offsets repeat
        assert await accepted_calls(metastore, 3) == 0


PLANTED = {
    "transactions are forgotten": ("IF -2 >= ANY (p_batch_epoch) THEN", "IF false THEN"),
    "every transactional batch may add its partition": ("WHEN s >= 0 THEN in_added()", "WHEN false THEN in_added()"),
    "known keys are forgotten": ("WHEN -3 THEN keys_stay() WHEN -4 THEN keys_moved()", "WHEN -9 THEN keys_stay()"),
    "keys that stay have moved": ("WHEN -3 THEN keys_stay()", "WHEN -3 THEN keys_moved()"),
    "the alias before": ("THEN -16 - count ELSE", "THEN -17 - count ELSE"),
    "aliases are forgotten": ("IF -16 >= ANY (p_batch_count) THEN", "IF false THEN"),
    "codes are partition counts": ("SELECT greatest(count, -1)", "SELECT abs(count)"),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_number_that_is_taken_apart_wrongly_is_found(scene: HalvingScene, bug: str) -> None:
    if "alias" in bug:
        await merged(scene)
    await scene.raw.execute(broken("earlier_commit_files", [PLANTED[bug]]).encode())
    assert (await _differences(scene, 2, most=1))[0] == 1
