"""Group commit: one call at a time, doubt that is repeated and never guessed at, poison that hurts only itself."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from headrace.metastore.api.commit import CommitApi, FileAnswer, FileCommit, FileStatus
from headrace.storage.errors import InvalidError, OutcomeUnknownError, UnavailableError
from tests.agent.produce.produce_faults import HeldMetastore, HeldStore
from tests.agent.produce.produce_world import EPOCH, NODE_ID, ProduceWorld
from tests.storage.batches import plain_batch

Sent = asyncio.Task[Any]


class Bench:
    """One flush at a time, each of one batch; the test holds every commit call."""

    def __init__(self, *, hold_puts: bool = False) -> None:
        self.world = ProduceWorld()
        self.world.metastore = self.metastore = HeldMetastore(self.world.model)
        self.store = HeldStore(self.world.bucket)
        if hold_puts:
            self.world.store = self.store
        self.topic = self.world.create_topic("t", 8)

    async def __aenter__(self) -> Bench:
        await self.world.start()
        self.client = self.world.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.world.pipeline.close()

    async def flush(self, partition: int, text: str, **options: Any) -> Sent:
        """Send one batch on the same connection and let linger pass."""
        batch = plain_batch(1, text.encode())
        sent = asyncio.create_task(self.world.produce(self.client, {"t": {partition: batch}}, **options))
        await self.world.clock.advance(0.1)
        return sent

    async def settle(self) -> None:
        await self.world.clock.settle()

    async def log(self, partition: int) -> list[bytes]:
        return [stored.data for stored in await self.world.log_of(self.topic.key(partition) or 0)]

    async def finish(self, number: int) -> None:
        """A call works, and its answer arrives."""
        await self.call(number).finish()
        await self.settle()

    def call(self, number: int) -> Any:
        return self.metastore.commits[number]


class Poisoned:
    """Refuses every call that holds a batch of one partition, as a constraint would. Waits until `opened`."""

    def __init__(self, inner: CommitApi, key: int) -> None:
        self._inner = inner
        self._key = key
        self.opened = asyncio.Event()
        self.groups: list[int] = []

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        self.groups.append(len(files))
        await self.opened.wait()
        if any(batch.partition_key == self._key for file in files for batch in file.batches):
            raise InvalidError("violates a constraint")
        return await self._inner.commit_files(node_id, broker_epoch, files)

    async def allocate_producer_ids(self, count: int) -> range:
        return await self._inner.allocate_producer_ids(count)


def error_of(sent: Sent) -> str:
    """The error of the one batch that was sent."""
    ((_, answer),) = sent.result().items()
    return str(answer.error)


def _texts(*texts: str) -> list[bytes]:
    return [plain_batch(1, text.encode()) for text in texts]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench() as bench:
        yield bench


@pytest.mark.requirement("W3")
async def test_nothing_is_acknowledged_before_its_commit() -> None:
    async with Bench(hold_puts=True) as bench:
        sent = await bench.flush(0, "a")
        assert not bench.metastore.commits
        await bench.store.puts[0].finish()
        await bench.settle()
        assert not sent.done()
        await bench.call(0).happen()
        await bench.settle()
        assert not sent.done()
        await bench.finish(0)
        assert error_of(sent) == "none"
        assert bench.world.committed_calls == 1


async def test_files_that_become_ready_during_a_call_share_the_next_one(bench: Bench) -> None:
    sent = [await bench.flush(partition, "x") for partition in (0, 1, 1, 2)]
    assert [len(call.files) for call in bench.metastore.commits] == [1]
    await bench.finish(0)
    assert [len(call.files) for call in bench.metastore.commits] == [1, 3]
    await bench.finish(1)
    assert [error_of(task) for task in sent] == ["none"] * 4


@pytest.mark.requirement("W4")
async def test_a_slow_put_is_overtaken_by_everything_but_its_own_stream() -> None:
    async with Bench(hold_puts=True) as bench:
        slow, same, other = [await bench.flush(p, text) for p, text in ((0, "slow"), (0, "same"), (1, "other"))]
        await bench.store.puts[1].finish()
        await bench.store.puts[2].finish()
        await bench.settle()
        await bench.finish(0)
        assert [task.done() for task in (slow, same, other)] == [False, False, True]
        await bench.store.puts[0].finish()
        await bench.settle()
        await bench.finish(1)
        assert await bench.log(0) == _texts("slow", "same")
        assert [error_of(slow), error_of(same)] == ["none", "none"]


@pytest.mark.parametrize("happened", [False, True])
async def test_an_unknown_outcome_is_repeated_unchanged_and_its_stream_waits(bench: Bench, happened: bool) -> None:
    first = await bench.flush(0, "first")
    if happened:
        await bench.call(0).happen()
    bench.call(0).fail(OutcomeUnknownError("connection lost"))
    await bench.settle()
    behind, other = await bench.flush(0, "behind"), await bench.flush(1, "other")
    repeated = bench.call(1)
    assert repeated.files == bench.call(0).files
    repeated.fail(OutcomeUnknownError("connection lost again"))
    await bench.world.clock.advance(1)
    assert bench.call(2).files[0].batches[0].partition_key == bench.topic.key(1)
    await bench.finish(2)
    assert [task.done() for task in (first, behind, other)] == [False, False, True]
    await bench.finish(3)
    await bench.finish(4)
    assert [bench.call(n).files == bench.call(0).files for n in range(5)] == [True, True, False, True, False]
    assert [error_of(first), error_of(behind)] == ["none", "none"]
    assert await bench.log(0) == _texts("first", "behind")


async def test_a_call_that_happens_after_its_answer_was_given_up_changes_nothing(bench: Bench) -> None:
    first = await bench.flush(0, "first")
    bench.call(0).fail(OutcomeUnknownError("connection lost"))
    behind = await bench.flush(0, "behind")
    await bench.world.clock.advance(1)
    await bench.finish(1)
    await bench.call(2).finish()
    await bench.call(0).happen()
    await bench.settle()
    assert [error_of(first), error_of(behind)] == ["none", "none"]
    assert await bench.log(0) == _texts("first", "behind")


async def test_while_the_metastore_is_down_producers_wait_and_lose_nothing(bench: Bench) -> None:
    sent = [await bench.flush(0, "a")]
    for number in range(6):
        bench.call(number).fail(UnavailableError("refused"))
        await bench.world.clock.advance(2.5)
        assert len(bench.metastore.commits) == number + 2
    sent.append(await bench.flush(0, "b"))
    bench.call(6).fail(UnavailableError("refused"))
    await bench.world.clock.advance(2.5)
    assert not any(task.done() for task in sent)
    await bench.finish(7)
    await bench.world.clock.advance(1)
    if len(bench.metastore.commits) > 8:
        await bench.finish(8)
    assert [error_of(task) for task in sent] == ["none", "none"]
    assert await bench.log(0) == _texts("a", "b")


async def test_a_request_times_out_while_its_file_is_in_doubt_and_still_repeated(bench: Bench) -> None:
    sent = await bench.flush(0, "a", timeout_ms=1000)
    bench.call(0).fail(OutcomeUnknownError("lost"))
    await bench.world.clock.advance(0.8)
    assert not sent.done()
    await bench.world.clock.advance(0.3)
    assert error_of(sent) == "request_timed_out"
    assert bench.world.metric("timed_out_total") == 1
    for _ in range(5):
        bench.metastore.commits[-1].fail(OutcomeUnknownError("lost"))
        await bench.world.clock.advance(2.5)
    await bench.metastore.commits[-1].finish()
    await bench.settle()
    assert len(bench.metastore.commits) == 7
    assert await bench.log(0) == _texts("a")


async def test_a_file_without_waiting_requests_is_committed_only_if_in_doubt(bench: Bench) -> None:
    sent = await bench.flush(0, "a", timeout_ms=1000)
    bench.call(0).fail(UnavailableError("down"))
    await bench.world.clock.advance(1)
    bench.metastore.commits[-1].fail(UnavailableError("down"))
    await bench.world.clock.advance(10)
    tried = len(bench.metastore.commits)
    bench.metastore.commits[-1].fail(UnavailableError("down"))
    await bench.world.clock.advance(10)
    assert len(bench.metastore.commits) == tried
    assert error_of(sent) == "request_timed_out"
    assert await bench.log(0) == []
    await bench.world.pipeline.drain()


async def test_a_poison_file_is_found_by_halving_and_hurts_only_itself() -> None:
    bench = Bench()
    bench.world.metastore = poisoned = Poisoned(bench.world.model, bench.topic.key(3) or 0)
    async with bench:
        sent = [await bench.flush(partition, "x") for partition in range(8)]
        poisoned.opened.set()
        await bench.world.clock.advance(1)
        assert [error_of(task) for task in sent] == ["none"] * 3 + ["kafka_storage_error"] + ["none"] * 4
        assert poisoned.groups[:2] == [1, 7]
        assert len(poisoned.groups) <= 12


async def test_a_fenced_agent_repeats_under_its_new_epoch(bench: Bench) -> None:
    bench.world.model.fence_agent(NODE_ID)
    sent = await bench.flush(0, "a")
    await bench.finish(0)
    assert bench.world.fenced_calls == 1
    assert not sent.done()
    bench.world.view.broker_epoch = EPOCH + 1
    bench.world.model.register_agent(NODE_ID, EPOCH + 1)
    await bench.world.clock.advance(0.1)
    assert (bench.call(1).epoch, bench.call(1).files) == (EPOCH + 1, bench.call(0).files)
    await bench.finish(1)
    assert error_of(sent) == "none"


@pytest.mark.parametrize("status", [FileStatus.CONDEMNED, FileStatus.TOO_OLD])
async def test_a_condemned_or_too_old_file_fails_for_certain_and_takes_its_stream_along(
    bench: Bench, status: FileStatus
) -> None:
    first = await bench.flush(0, "first")
    behind, other = await bench.flush(0, "behind"), await bench.flush(1, "other")
    bench.call(0).answer([FileAnswer(bench.call(0).files[0].file_id, status)])
    await bench.settle()
    await bench.finish(1)
    assert [error_of(task) for task in (first, behind, other)] == [
        "kafka_storage_error",
        "kafka_storage_error",
        "none",
    ]
    assert await bench.log(0) == []


async def test_a_file_in_doubt_that_became_too_old_stays_unknown(bench: Bench) -> None:
    sent = await bench.flush(0, "a", timeout_ms=10_000_000)
    await bench.call(0).happen()
    bench.call(0).fail(OutcomeUnknownError("lost"))
    await bench.world.clock.advance(1)
    bench.call(1).answer([FileAnswer(bench.call(0).files[0].file_id, FileStatus.TOO_OLD)])
    await bench.settle()
    assert error_of(sent) == "request_timed_out"
    await bench.world.pipeline.drain()


async def test_a_batch_refused_for_its_leader_epoch_takes_along_what_waits_behind_it(bench: Bench) -> None:
    blocker = await bench.flush(5, "blocker")
    first = await bench.flush(0, "first")
    bench.world.model.set_leader_epoch(bench.topic.key(0) or 0, 3)
    await bench.finish(0)
    behind = await bench.flush(0, "behind")
    await bench.finish(1)
    assert [error_of(task) for task in (blocker, first, behind)] == [
        "none",
        "not_leader_or_follower",
        "not_leader_or_follower",
    ]
    assert len(bench.metastore.commits) == 2


@pytest.mark.parametrize("answers", [[], [FileAnswer(uuid.UUID(int=1), FileStatus.COMMITTED)]])
async def test_an_answer_that_does_not_fit_tells_nothing(bench: Bench, answers: list[FileAnswer]) -> None:
    sent = await bench.flush(0, "a")
    bench.call(0).answer(answers)
    await bench.world.clock.advance(1)
    assert not sent.done()
    await bench.finish(1)
    assert error_of(sent) == "none"


async def test_a_client_librarys_own_error_counts_as_unknown(bench: Bench) -> None:
    sent = await bench.flush(0, "a")
    await bench.call(0).happen()
    bench.call(0).fail(RuntimeError("a bug"))
    await bench.world.clock.advance(1)
    assert bench.call(1).files == bench.call(0).files
    await bench.finish(1)
    assert error_of(sent) == "none"
    assert await bench.log(0) == _texts("a")
    assert bench.world.metric("commit_failures_total", error="RuntimeError") == 1
