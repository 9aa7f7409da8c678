"""What is read off a commit's answers, next to what the metastore tells every reader of the same commit."""

from __future__ import annotations

import random
import uuid

import pytest

from headrace.agent.fetch.index.own_commits import appended_extents
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.commit import (
    BatchAnswer,
    BatchOutcome,
    BatchTransaction,
    FileAnswer,
    FileCommit,
    FileStatus,
    MovedKeys,
    StagedBatch,
)
from headrace.metastore.api.read import Extent
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import partition_key
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id

ROUNDS, PARTITIONS, PRODUCERS = 40, 6, 4


@pytest.mark.requirement("W5")
async def test_it_says_what_the_feed_says(metastore: PostgresMetastore) -> None:
    """Random calls of several files, with duplicates, gaps in sequences and batches of many partitions."""
    rng = random.Random(20)
    node_id, broker_epoch = await metastore.cluster.register_agent(
        AgentRegistration(None, uuid.uuid4(), "localhost", 9092, None)
    )
    head = await metastore.cluster.metadata_head()
    await metastore.cluster.heartbeat(
        node_id, broker_epoch, metadata_offset=head, want_fence=False, session_timeout_ms=60_000
    )
    head = await metastore.cluster.metadata_head()
    assert await metastore.topics.create_topics(head, [NewTopic("t", uuid.UUID(int=5), PARTITIONS, {})])
    heads = (await metastore.index.poll_feed({})).heads
    sequences: dict[tuple[int, int], int] = {}
    total = refused = 0
    for _ in range(ROUNDS):
        now_ms = (await metastore.index.poll_feed({})).wall_ms
        commits = [_file(rng, head, now_ms, sequences) for _ in range(rng.randint(1, 3))]
        answers = await metastore.commits.commit_files(node_id, broker_epoch, commits)
        page = await metastore.index.poll_feed(heads)
        heads = page.heads
        told = [extent for row in page.rows for extent in row.extents]

        mine = appended_extents(commits, answers)

        assert mine is not None
        assert sorted(mine, key=_by_offset) == sorted(told, key=_by_offset)
        total += len(told)
        refused += sum(judged.outcome != 0 for answer in answers for judged in answer.batches)
    assert total > 100
    assert refused > 20


def _by_offset(extent: Extent) -> tuple[int, int]:
    return extent.partition_key, extent.base_offset


def _file(rng: random.Random, topic_number: int, now_ms: int, sequences: dict[tuple[int, int], int]) -> FileCommit:
    batches, position = [], 0
    for partition in sorted(rng.choices(range(PARTITIONS), k=rng.randint(1, 12))):
        producer, count, length = rng.randrange(PRODUCERS), rng.randint(1, 5), rng.randint(60, 300)
        sequence = sequences.get((partition, producer), 0)
        match rng.choice(["next", "next", "next", "again", "gap"]):
            case "next":
                sequences[partition, producer] = sequence + count
            case "again":
                sequence = max(sequence - count, 0)
            case "gap":
                sequence += 100
        position += rng.choice([0, 0, 7])  # bytes of no batch
        batches.append(
            StagedBatch(
                *(partition_key(topic_number, partition), position, length, count, now_ms + rng.randint(-50, 50)),
                *(1_000 + producer, 0, sequence, 0),
            )
        )
        position += length
    return FileCommit(new_file_id(now_ms, rng), position + 10, batches)


@pytest.mark.parametrize(
    "change",
    [
        {"transaction": BatchTransaction.ADDED},
        {"leader_epoch": -1},
        {"alias": 3},
        {"keys": MovedKeys.STAY},
        {"keys": MovedKeys.MOVED},
    ],
    ids=str,
)
def test_it_says_nothing_of_what_the_answers_do_not_tell(change: dict[str, int]) -> None:
    plain = StagedBatch(4 << 24, 0, 100, 1, 7, leader_epoch=3)
    other = plain._replace(position=100, **change)
    file_id = uuid.UUID(int=9)
    judged = [FileAnswer(file_id, FileStatus.AGENT_FENCED)]

    assert appended_extents([FileCommit(file_id, 100, [plain])], judged) == []
    answered = [FileAnswer(file_id, FileStatus.COMMITTED, [_appended(0), _appended(1)])]
    assert appended_extents([FileCommit(file_id, 200, [plain, other])], answered) is None


def _appended(base_offset: int) -> BatchAnswer:
    return BatchAnswer(BatchOutcome.APPENDED, base_offset, 7)
