"""Small requests of low-latency topics go into a separate file, and the order of each stream spans both (X13)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from headrace.agent.produce import flusher
from headrace.agent.produce.inline_watch import PAUSE_S
from headrace.metastore.api.agents import LOW_LATENCY, FeatureRange
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.inline import NO_SLOT, InlineState
from headrace.metastore.log.image import TopicImage
from headrace.protocol.request import ClientConnection
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import is_inline
from tests.agent.produce.produce_faults import HeldStore
from tests.agent.produce.produce_world import ProduceWorld
from tests.inline_slots import inline_slot
from tests.storage.batches import plain_batch

pytestmark = pytest.mark.requirement("X13")
SOUND = InlineState(
    slot=5, free_slots=9, held_bytes=0, oldest_ms=0, archive_fails=False, retained_wal_bytes=0, asked_ms=-1
)


class TwoFiles(ProduceWorld):
    """Topics `fast` and `plain`; what each commit call was sent. `state`: of the slots."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(flush_early_per_second=None, linger_ms=100, **settings)
        self.state = SOUND
        self.calls = list[list[FileCommit]]()
        self.fails = list[Exception]()
        commit = self.model.commit_files

        async def commit_files(node_id: int, epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
            self.calls.append(list(files))
            answers = await commit(node_id, epoch, files)
            if self.fails:
                raise self.fails.pop()
            return answers

        self.model.commit_files = commit_files  # type: ignore[method-assign]
        self.model.inline_state = self.inline_state  # type: ignore[attr-defined]
        self.model.rotate_inline_slots = self.rotate_inline_slots  # type: ignore[attr-defined]

    async def inline_state(self) -> InlineState:
        return self.state

    async def rotate_inline_slots(self, slot_bytes: int, slot_ms: int) -> int:
        return 0

    def create_topic(self, name: str, partitions: int = 1, *, known: bool = True, **configs: str) -> TopicImage:
        topic = super().create_topic(name, partitions, known=known, **configs)
        features = MappingProxyType({LOW_LATENCY: FeatureRange(1, 1)})
        self.view.image = self.view.head = replace(self.view.head, features=features)
        return topic

    async def begin(self) -> None:
        self.create_topic("fast", 2, low_latency_enable="true")
        self.create_topic("plain", 2)
        await self.start()
        await self.clock.advance(PAUSE_S)

    def send(self, sequence: int, topics: Sequence[str], client: ClientConnection, size: int = 10) -> asyncio.Task[Any]:
        numbered = plain_batch(1, b"v" * size, producer_id=77, producer_epoch=0, base_sequence=sequence)
        batches = {name: {0: numbered if name == "fast" else plain_batch(1)} for name in topics}
        return asyncio.create_task(self.produce(client, batches))

    @property
    def inline(self) -> list[list[bool]]:
        """Whether each file of each call was inline."""
        return [[is_inline(file.file_id) for file in call] for call in self.calls]


@pytest.fixture
async def world() -> TwoFiles:
    world = TwoFiles()
    world.store = HeldStore(world.bucket)
    await world.begin()
    return world


def code(task: asyncio.Task[Any]) -> set[str]:
    return {str(answer.error) for answer in task.result().values()}


async def test_a_small_request_is_answered_without_the_bucket_and_without_linger(world: TwoFiles) -> None:
    client = world.connect()
    sent = world.send(0, ["fast"], client)
    await world.clock.settle()
    assert code(sent) == {"none"}
    assert world.store.puts == []
    ((file,),) = world.calls
    assert inline_slot(file.file_id) == 5
    assert file.body is not None
    assert len(file.body) == file.size
    await world.pipeline.close()


@pytest.mark.parametrize("topics", [["plain"], ["fast", "plain"]])
async def test_a_request_with_another_topic_goes_into_the_bucket_as_a_whole(world: TwoFiles, topics: list[str]) -> None:
    sent = world.send(0, topics, world.connect())
    await world.clock.advance(0.2)
    assert not sent.done()
    (put,) = world.store.puts
    await put.finish()
    await world.clock.settle()
    assert code(sent) == {"none"}
    assert world.inline == [[False]]
    await world.pipeline.close()


async def test_a_stream_follows_its_earlier_batches_into_the_bucket_and_waits_for_the_put(world: TwoFiles) -> None:
    client = world.connect()
    large = world.send(0, ["fast"], client, size=300_000)
    small = world.send(1, ["fast"], client)
    await world.clock.advance(0.2)
    last = world.send(2, ["fast"], client)  # the large one is uploaded: this one waits in a file behind it
    await world.clock.advance(0.2)
    assert [each.done() for each in (large, small, last)] == [False] * 3
    (put,) = world.store.puts
    await put.finish()
    await world.clock.settle()
    assert [code(each) for each in (large, small, last)] == [{"none"}] * 3
    assert [flag for call in world.inline for flag in call] == [False, True]
    await world.pipeline.close()


async def test_before_a_stream_goes_into_the_bucket_its_inline_file_is_closed(world: TwoFiles) -> None:
    client = world.connect()
    world.pipeline._committer._metastore.commit_files, call = slow_commits(world)
    first = world.send(0, ["fast"], client)
    await world.clock.settle()
    second = world.send(1, ["fast"], client)  # the first one is being committed: this one waits in the open file
    await world.clock.settle()
    third = world.send(2, ["fast", "plain"], client)
    await world.clock.advance(0.2)
    call.set()
    await world.clock.settle()
    assert [code(each) for each in (first, second)] == [{"none"}] * 2
    assert not third.done()
    (put,) = world.store.puts
    await put.finish()
    await world.clock.settle()
    assert code(third) == {"none"}
    assert world.metric("flushes_total", reason="order") == 1
    await world.pipeline.close()


def slow_commits(world: TwoFiles) -> tuple[Any, asyncio.Event]:
    """The model's commit, which waits for the event."""
    commit, may_end = world.model.commit_files, asyncio.Event()

    async def commit_files(*args: Any) -> Any:
        await may_end.wait()
        return await commit(*args)

    return commit_files, may_end


async def test_while_one_file_is_committed_the_next_takes_all_that_comes(world: TwoFiles) -> None:
    world.pipeline._committer._metastore.commit_files, call = slow_commits(world)
    sent = [asyncio.create_task(world.produce(world.connect(), {"fast": {0: plain_batch(1)}})) for _ in range(1)]
    await world.clock.settle()
    sent += [asyncio.create_task(world.produce(world.connect(), {"fast": {0: plain_batch(1)}})) for _ in range(9)]
    await world.clock.settle()
    call.set()
    await world.clock.settle()
    assert all(task.done() for task in sent)
    assert [len(call) for call in world.calls] == [1, 1]
    await world.pipeline.close()


async def test_a_client_in_the_middle_of_sending_is_waited_for_a_moment_and_no_other(world: TwoFiles) -> None:
    """It keeps three requests in flight; the file waits for the rest of the next three, but not for a slow one."""
    busy, alone = world.connect(), world.connect()

    def send(connection: ClientConnection) -> asyncio.Task[Any]:
        return asyncio.create_task(world.produce(connection, {"fast": {0: plain_batch(1)}}))

    for _ in range(2):
        first = [send(busy) for _ in range(3)]
        await world.clock.settle()
        assert all(task.done() for task in first)
    begun = send(busy)
    await world.clock.settle()
    assert not begun.done()
    rest = [send(busy), send(busy)]
    await world.clock.settle()
    assert all(task.done() for task in (begun, *rest)), "all have come"
    begun = send(busy)
    await world.clock.settle()
    assert not begun.done()
    await world.clock.advance(world.pipeline._flusher._policy.limits.idle_s)
    assert begun.done(), "the rest is late"
    lone = send(alone)
    await world.clock.settle()
    assert lone.done(), "a client with one request at a time"
    assert [len(call) for call in world.calls] == [1] * 5
    await world.pipeline.close()


async def test_after_an_unknown_outcome_the_same_file_is_sent_again_also_without_a_slot(world: TwoFiles) -> None:
    world.fails.append(OutcomeUnknownError("lost"))
    sent = world.send(0, ["fast"], world.connect())
    await world.clock.settle()
    world.state = SOUND._replace(slot=NO_SLOT)
    await world.clock.advance(3.0)
    assert code(sent) == {"none"}
    (first,), (second,) = world.calls
    assert first == second
    assert world.store.puts == []
    await world.pipeline.close()


async def test_a_call_that_did_nothing_is_repeated_with_the_bytes(world: TwoFiles) -> None:
    model_commit = world.model.commit_files
    failed = list[int]()

    async def commit_files(node_id: int, epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        if not failed:
            failed.append(1)
            raise UnavailableError("no connection")
        return await model_commit(node_id, epoch, files)

    world.model.commit_files = commit_files  # type: ignore[method-assign]
    sent = world.send(0, ["fast"], world.connect())
    await world.clock.advance(1.0)
    assert code(sent) == {"none"}
    ((file,),) = world.calls
    assert file.body
    await world.pipeline.close()


async def test_without_a_slot_it_is_as_without_the_config(world: TwoFiles) -> None:
    world.state = SOUND._replace(slot=NO_SLOT)
    await world.clock.advance(20.0)
    sent = world.send(0, ["fast"], world.connect())
    await world.clock.advance(0.2)
    (put,) = world.store.puts
    await put.finish()
    await world.clock.settle()
    assert code(sent) == {"none"}
    assert world.inline == [[False]]
    assert world.metric("not_inline_total", reason="held") == 1
    await world.pipeline.close()


async def random_history(seed: int) -> set[str]:
    """Small, large and mixed requests of three producers, PUTs that end in any order; how batches were answered."""
    rng = random.Random(seed)
    world = TwoFiles(low_latency_file_max_bytes=1_000)
    world.store = HeldStore(world.bucket)
    await world.begin()
    clients, sequences = [world.connect() for _ in range(3)], [0, 0, 0]
    sent = list[asyncio.Task[Any]]()
    for _ in range(40):
        which = rng.randrange(3)
        topics = rng.choice((["fast"], ["fast"], ["fast", "plain"]))
        batch = plain_batch(
            1,
            b"v" * rng.choice((10, 10, 2_000)),
            producer_id=70 + which,
            producer_epoch=0,
            base_sequence=sequences[which],
        )
        sequences[which] += 1
        batches = {name: {0: batch if name == "fast" else plain_batch(1)} for name in topics}
        sent.append(asyncio.create_task(world.produce(clients[which], batches)))
        await world.clock.advance(rng.choice((0.0, 0.0, 0.01, 0.2)))
        for put in [put for put in world.store.puts if not put.result.done() and rng.random() < 0.5]:
            await put.finish()
    for _ in range(50):
        for put in [put for put in world.store.puts if not put.result.done()]:
            await put.finish()
        await world.clock.advance(0.2)
    assert all(task.done() for task in sent), seed
    codes = {each for task in sent for each in code(task)}
    assert any(flag for call in world.inline for flag in call)
    assert not all(flag for call in world.inline for flag in call)
    await world.pipeline.close()
    return codes


@pytest.mark.parametrize("seed", range(12))
async def test_no_producer_is_called_out_of_order_in_any_history(seed: int) -> None:
    assert await random_history(seed) == {"none"}


async def test_the_planted_bug_lets_a_stream_be_in_both_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "_shares_stream", lambda file, arrivals: False)
    found = set[str]()
    for seed in range(12):
        found |= await random_history(seed)
    assert found != {"none"}
