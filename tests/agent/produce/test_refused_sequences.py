"""What is behind a refused batch is refused retriably, as long as its client may send that one again (decisions/0007).
After "out of order" a client begins another epoch, and stores again what was not answered.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from headrace.agent.produce.acknowledge import ABANDON_AFTER_S
from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS, NOTED_SECONDS, Numbered
from headrace.metastore.api.commit import BatchOutcome, FileAnswer, FileStatus
from headrace.storage.errors import InvalidError, OutcomeUnknownError, UnavailableError
from tests.agent.produce.produce_faults import HeldMetastore, HeldStore
from tests.agent.produce.produce_world import EPOCH, NODE_ID, ProduceWorld
from tests.storage.batches import plain_batch

PRODUCER = 77


class Bench:
    """One agent with held puts and commits, and one connection of an idempotent producer."""

    def __init__(self, *, hold_puts: bool = False, hold_commits: bool = False) -> None:
        self.world = ProduceWorld()
        self.store, self.metastore = HeldStore(self.world.bucket), HeldMetastore(self.world.model)
        if hold_puts:
            self.world.store = self.store
        if hold_commits:
            self.world.metastore = self.metastore
        self.topic = self.world.create_topic("t")

    async def __aenter__(self) -> Bench:
        await self.world.start()
        self.client = self.world.connect(PRODUCER)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.world.pipeline.close()

    async def send(self, sequence: int, *, topic: str = "t", epoch: int = 0, **options: Any) -> asyncio.Task[Any]:
        """One batch of one record; returns when its file is closed."""
        batch = plain_batch(producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence)
        sent = asyncio.create_task(self.world.produce(self.client, {topic: {0: batch}}, **options))
        await self.world.clock.advance(0.1)
        return sent

    async def error(self, sequence: int, **options: Any) -> str:
        """Return how a batch is answered at once, with nothing held."""
        return _error(await self.send(sequence, **options))

    async def append(self, sequence: int) -> str:
        """Do the same as `error`, for puts that are held: this one works."""
        sent = await self.send(sequence)
        await self.store.puts[-1].finish()
        await self.world.clock.settle()
        return _error(sent)

    def stored(self) -> int:
        """Return how many records the log has."""
        return self.world.model.partitions[self.topic.key(0) or 0].high_watermark


def _error(sent: asyncio.Task[Any]) -> str:
    ((_, answer),) = sent.result().items()
    return str(answer.error)


@pytest.mark.requirement("W7")
async def test_what_comes_behind_a_batch_that_was_not_stored_is_refused_retriably() -> None:
    async with Bench(hold_puts=True) as bench:
        assert await bench.append(0) == "none"
        failed = await bench.send(1)
        bench.store.puts[-1].fail(UnavailableError("bucket down"))
        await bench.world.clock.settle()
        assert _error(failed) == "kafka_storage_error"
        assert [await bench.append(sequence) for sequence in (2, 3)] == ["kafka_storage_error"] * 2
        assert bench.stored() == 1
        assert [await bench.append(sequence) for sequence in (1, 2, 3)] == ["none"] * 3
        assert bench.stored() == 4
        assert await bench.append(9) == "out_of_order_sequence_number"


@pytest.mark.requirement("W7")
async def test_a_batch_that_never_comes_again_is_waited_for_two_minutes() -> None:
    async with Bench(hold_puts=True) as bench:
        assert await bench.append(0) == "none"
        await bench.send(1)
        bench.store.puts[-1].fail(UnavailableError("bucket down"))
        await bench.world.clock.settle()
        assert await bench.append(2) == "kafka_storage_error"
        await bench.world.clock.advance(NOTED_SECONDS)
        assert await bench.append(2) == "out_of_order_sequence_number"


@pytest.mark.requirement("W7")
async def test_a_refused_batch_that_another_agent_stored_prevents_nothing() -> None:
    async with Bench(hold_puts=True) as bench:
        assert await bench.append(0) == "none"
        await bench.send(1)
        bench.store.puts[-1].fail(UnavailableError("bucket down"))
        await bench.world.clock.settle()
        other = ProduceWorld(seed=1)
        other.bucket, other.store, other.model, other.metastore, other.view = (
            bench.world.bucket,
            bench.world.bucket,
            bench.world.model,
            bench.world.model,
            bench.world.view,
        )
        async with other:
            batch = plain_batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=1)
            sent = asyncio.create_task(other.produce(other.connect(), {"t": {0: batch}}))
            await other.clock.advance(0.1)
            assert _error(sent) == "none"
        assert await bench.append(2) == "none"
        await bench.world.clock.advance(ELSEWHERE_SECONDS)  # until then, 3 may be on its way elsewhere
        assert await bench.append(4) == "out_of_order_sequence_number"


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("status", [FileStatus.CONDEMNED, FileStatus.TOO_OLD])
async def test_what_comes_behind_a_file_that_the_metastore_refused_is_refused_retriably(status: FileStatus) -> None:
    async with Bench(hold_commits=True) as bench:
        sent = await bench.send(0)
        call = bench.metastore.commits[-1]
        call.answer([FileAnswer(call.files[0].file_id, status)])
        await bench.world.clock.settle()
        behind = await bench.send(1)
        await bench.metastore.commits[-1].finish()
        await bench.world.clock.settle()
        assert [_error(sent), _error(behind)] == ["kafka_storage_error"] * 2


@pytest.mark.requirement("W7")
async def test_what_comes_behind_a_file_without_an_answer_is_refused_retriably() -> None:
    """Two files in a call, and its answer is lost: the first is condemned, the second is committed. When the call is
    repeated the agent is fenced, so only the second has its answer."""
    async with Bench(hold_commits=True) as bench:
        model, commits = bench.world.model, bench.metastore.commits
        stored, condemned, behind = [await bench.send(sequence) for sequence in (0, 1, 2)]
        await commits[0].finish()
        await bench.world.clock.settle()
        model.condemn(commits[1].files[0].file_id)
        statuses = [answer.status for answer in await commits[1].happen()]
        assert statuses == [FileStatus.CONDEMNED, FileStatus.COMMITTED]
        commits[1].fail(OutcomeUnknownError("cut off"))
        model.register_agent(NODE_ID, EPOCH + 1)
        await bench.world.clock.advance(1)
        statuses = [answer.status for answer in await commits[2].happen()]
        assert statuses == [FileStatus.AGENT_FENCED, FileStatus.COMMITTED]
        await commits[2].finish()
        await bench.world.clock.settle()
        assert [_error(stored), _error(behind)] == ["none", "kafka_storage_error"]
        assert not condemned.done()
        commits[3].epoch = bench.world.view.broker_epoch = EPOCH + 1
        await bench.world.clock.advance(1)
        await commits[3].finish()
        await bench.world.clock.settle()
        assert _error(condemned) == "kafka_storage_error"
        again = await bench.send(2)
        await commits[4].finish()
        await bench.world.clock.settle()
        assert _error(again) == "kafka_storage_error"
        assert bench.stored() == 1


@pytest.mark.requirement("W7")
async def test_what_comes_behind_a_batch_of_an_unknown_outcome_is_refused_retriably() -> None:
    async with Bench(hold_commits=True) as bench:
        sent = await bench.send(0)
        bench.metastore.commits[-1].fail(OutcomeUnknownError("lost"))
        await bench.world.clock.advance(1)
        bench.metastore.commits[-1].fail(InvalidError("refused"))
        await bench.world.clock.settle()
        behind = await bench.send(1)
        await bench.metastore.commits[-1].finish()
        await bench.world.clock.settle()
        assert [_error(sent), _error(behind)] == ["request_timed_out", "kafka_storage_error"]


@pytest.mark.requirement("W7")
async def test_what_comes_behind_an_abandoned_file_is_refused_retriably() -> None:
    async with Bench(hold_puts=True) as bench:
        sent = await bench.send(0, timeout_ms=200)
        await bench.world.clock.advance(ABANDON_AFTER_S + 1)
        assert _error(sent) == "request_timed_out"
        await bench.store.puts[-1].finish()
        await bench.world.clock.settle()
        assert bench.stored() == 0
        assert await bench.append(1) == "kafka_storage_error"
        assert [await bench.append(sequence) for sequence in (0, 1)] == ["none"] * 2


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("is_unreachable", [True, False])
async def test_what_comes_behind_a_batch_for_a_topic_that_was_unknown_is_refused_retriably(
    is_unreachable: bool,
) -> None:
    async with Bench() as bench:
        bench.world.create_topic("new", known=False)
        bench.world.view.unreachable = UnavailableError("out of reach") if is_unreachable else None
        bench.world.view.head, head = bench.world.view.image, bench.world.view.head
        first = await bench.error(0, topic="new")
        bench.world.view.unreachable = None
        bench.world.view.image = bench.world.view.head = head
        behind = await bench.error(1, topic="new")
        assert [first, behind] == [
            "leader_not_available" if is_unreachable else "unknown_topic_or_partition",
            "kafka_storage_error",
        ]
        assert [await bench.error(sequence, topic="new") for sequence in (0, 1)] == ["none"] * 2
        assert await bench.error(9, topic="new") == "out_of_order_sequence_number"


@pytest.mark.requirement("W7")
async def test_what_comes_behind_a_batch_with_an_old_leader_epoch_is_refused_retriably() -> None:
    async with Bench(hold_commits=True) as bench:
        sent = await bench.send(0)
        bench.world.model.set_leader_epoch(bench.topic.key(0) or 0, 3)
        await bench.metastore.commits[-1].finish()
        await bench.world.clock.settle()
        assert _error(sent) == "not_leader_or_follower"
        bench.world.model.set_leader_epoch(bench.topic.key(0) or 0, 0)
        behind = await bench.send(1)
        await bench.metastore.commits[-1].finish()
        await bench.world.clock.settle()
        assert _error(behind) == "kafka_storage_error"


async def test_batches_for_an_alias_are_noted_under_the_partition_that_their_client_names() -> None:
    async with Bench(hold_puts=True) as bench:
        topic = bench.world.create_topic("halved", 2)
        bench.world.put_topic(replace(topic, aliases={1: 0}))
        bench.world.view.image = bench.world.view.head
        sent = []
        for sequence in (0, 1):  # the second one is still in the buffer when the first one fails
            batch = plain_batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
            sent.append(asyncio.create_task(bench.world.produce(bench.client, {"halved": {1: batch}})))
            await bench.world.clock.advance(0.1 if sequence == 0 else 0.05)
        bench.store.puts[-1].fail(UnavailableError("bucket down"))
        await bench.world.clock.settle()
        assert [_error(each) for each in sent] == ["kafka_storage_error"] * 2
        notes = bench.world.pipeline._refused
        assert len(notes) == 1
        behind = Numbered(PRODUCER, 0, 2, (topic.topic_number, 1))
        assert notes.explain(behind, bench.world.clock.monotonic())


async def test_a_final_refusal_is_not_noted() -> None:
    """No client sends such a batch again: to wait for it would only delay the answer."""
    async with Bench() as bench:
        huge = plain_batch(1, b"x" * 8000, producer_id=PRODUCER, producer_epoch=0, base_sequence=1)
        bench.world.create_topic("small", max_message_bytes="4096")
        assert await bench.error(0, topic="small") == "none"
        sent = asyncio.create_task(bench.world.produce(bench.client, {"small": {0: huge}}))
        await bench.world.clock.advance(0.1)
        assert _error(sent) == "message_too_large"
        assert await bench.error(2, topic="small") == "out_of_order_sequence_number"


async def test_the_commit_judges_each_batch_and_its_other_answers_stay() -> None:
    async with Bench(hold_puts=True) as bench:
        await bench.append(0)
        await bench.send(1)
        bench.store.puts[-1].fail(UnavailableError("bucket down"))
        await bench.world.clock.settle()
        bench.world.model.partitions[bench.topic.key(0) or 0].producers[PRODUCER].epoch = 5
        assert await bench.append(2) == "invalid_producer_epoch"
        judged = [a.outcome for answers in bench.world.model.answers.values() for a in answers.batches]
        assert judged == [BatchOutcome.APPENDED, BatchOutcome.PRODUCER_FENCED]
