"""A batch is not called out of order while an earlier one may be on its way through another agent (decisions/0082).

One client sends through two agents, as after a move of its leader or the end of its connection.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import replace
from types import MappingProxyType

import pytest

from headrace.agent.produce.batches import PlacedBatch
from headrace.agent.produce.last_stored import STREAM_BYTES, STREAMS_MAX, LastStored, RequestOrigins
from headrace.agent.produce.pending import ALL_ACKS, Origin, PendingRequest
from headrace.agent.produce.refused_sequences import (
    ELSEWHERE_SECONDS,
    NOTED_SECONDS,
    PRODUCER_BYTES,
    SEQUENCE_BYTES,
    Numbered,
    RefusedSequences,
)
from headrace.config.memory_budget import LAST_STORED_BYTES
from headrace.metastore.api.commit import StagedBatch
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.protocol.produce_codec import ProducePartitionReply, ProduceRequest
from headrace.protocol.request import ClientConnection, GivenProducer
from tests.agent.produce.produce_world import ProduceWorld
from tests.manual_clock import ManualClock
from tests.storage.batches import plain_batch

PRODUCER = 77
RETRIABLE, FINAL = "kafka_storage_error", "out_of_order_sequence_number"
AGENT = AgentImage(2, 5, uuid.UUID(int=5), "host", 9092, None, fenced=False)


class Two:
    """Two agents on one model metastore, and one client connected to both."""

    async def __aenter__(self) -> Two:
        self.worlds = here, there = ProduceWorld(seed=0), ProduceWorld(seed=1)
        there.bucket, there.store, there.clock = here.bucket, here.bucket, here.clock
        there.model, there.metastore, there.view = here.model, here.model, here.view
        here.create_topic("t")
        self.clients = [here.connect(PRODUCER), there.connect()]
        for world in self.worlds:
            await world.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for world in self.worlds:
            await world.pipeline.close()

    async def send(
        self, sequence: int, *, agent: int = 0, client: ClientConnection | None = None, producer_id: int = PRODUCER
    ) -> str:
        """Send one batch of one record through an agent; how it is answered."""
        world = self.worlds[agent]
        batch = plain_batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        sent = asyncio.create_task(world.produce(client or self.clients[agent], {"t": {0: batch}}))
        await world.clock.advance(0.1)
        ((_, answer),) = (sent.result() or {}).items()
        return str(answer.error)

    async def wait(self, seconds: float) -> None:
        await self.worlds[0].clock.advance(seconds)

    def agents_change(self) -> None:
        """An agent joins the cluster."""
        view = self.worlds[0].view
        view.image = view.head = replace(view.image, agents=MappingProxyType({2: AGENT}))


@pytest.mark.requirement("W7")
async def test_a_gap_after_a_move_is_waited_for_until_the_other_agent_has_stored_it() -> None:
    async with Two() as two:
        assert [await two.send(sequence, agent=0) for sequence in (0, 1)] == ["none"] * 2
        assert [await two.send(sequence, agent=1) for sequence in (4, 3, 5)] == [RETRIABLE] * 3
        assert await two.send(2, agent=0) == "none"
        assert [await two.send(sequence, agent=1) for sequence in (3, 4, 5)] == ["none"] * 3


@pytest.mark.requirement("W7")
async def test_the_first_batches_of_a_producer_may_be_elsewhere_too() -> None:
    async with Two() as two:
        assert await two.send(1, agent=1) == RETRIABLE
        assert [await two.send(sequence, agent=0) for sequence in (0, 1)] == ["none"] * 2


@pytest.mark.requirement("W7")
async def test_a_gap_behind_a_batch_that_came_by_the_same_connection_is_final() -> None:
    async with Two() as two:
        assert [await two.send(sequence) for sequence in (0, 1, 5)] == ["none", "none", FINAL]
        assert await two.send(3) == FINAL


@pytest.mark.requirement("W7")
async def test_a_gap_on_another_connection_to_the_same_agent_is_waited_for() -> None:
    """It was connected to another agent meanwhile, behind one address."""
    async with Two() as two:
        assert await two.send(0) == "none"
        assert await two.send(3, client=two.worlds[0].connect()) == RETRIABLE


@pytest.mark.requirement("W7")
async def test_a_gap_on_the_same_connection_is_waited_for_after_the_agents_changed() -> None:
    """The leader may have been another agent meanwhile."""
    async with Two() as two:
        assert await two.send(0) == "none"
        two.agents_change()
        assert await two.send(3) == RETRIABLE
        assert [await two.send(sequence) for sequence in (1, 2, 3)] == ["none"] * 3
        await two.wait(ELSEWHERE_SECONDS)
        assert await two.send(7) == FINAL


@pytest.mark.requirement("W7")
async def test_a_gap_on_a_connection_that_was_opened_lately_is_waited_for() -> None:
    """What was sent before it, through another agent, may not have its answer yet."""
    async with Two() as two:
        assert await two.send(0, agent=0) == "none"
        assert [await two.send(sequence, agent=1) for sequence in (1, 3)] == ["none", RETRIABLE]
        assert [await two.send(sequence, agent=0) for sequence in (2, 3)] == ["none"] * 2
        assert await two.send(4, agent=1) == "none"
        await two.wait(ELSEWHERE_SECONDS)
        assert await two.send(9, agent=1) == FINAL


@pytest.mark.requirement("W7")
async def test_an_earlier_batch_that_comes_by_this_connection_does_not_end_the_wait() -> None:
    async with Two() as two:
        assert await two.send(0, agent=0) == "none"
        assert await two.send(4, agent=1) == RETRIABLE
        assert [await two.send(sequence, agent=1) for sequence in (1, 4)] == ["none", RETRIABLE]
        assert [await two.send(sequence, agent=0) for sequence in (2, 3)] == ["none"] * 2
        assert await two.send(4, agent=1) == "none"


@pytest.mark.requirement("W7")
async def test_a_gap_that_stays_is_final_after_the_request_timeout_of_clients() -> None:
    async with Two() as two:
        assert await two.send(0, agent=0) == "none"
        assert await two.send(3, agent=1) == RETRIABLE
        await two.wait(ELSEWHERE_SECONDS / 2)
        assert [await two.send(sequence, agent=1) for sequence in (3, 4)] == [RETRIABLE] * 2
        await two.wait(ELSEWHERE_SECONDS / 2)
        for _ in range(3):
            assert [await two.send(sequence, agent=1) for sequence in (3, 4, 9)] == [FINAL] * 3
            await two.wait(20)


@pytest.mark.requirement("W7")
async def test_another_producer_is_waited_for_by_itself() -> None:
    async with Two() as two:
        assert await two.send(3, agent=1) == RETRIABLE
        await two.wait(ELSEWHERE_SECONDS)
        assert await two.send(3, agent=1) == FINAL
        assert await two.send(3, agent=1, producer_id=78) == RETRIABLE


class TestGaps:
    """What is kept of a gap."""

    def setup_method(self) -> None:
        self.notes = RefusedSequences(lambda number: None)

    def explain(self, sequence: int, now: float, *, epoch: int = 0, is_settled: bool = False) -> bool:
        batch = Numbered(PRODUCER, epoch, sequence, (9, 0))
        return self.notes.explain(batch, now) or self.notes.explain_by_another_agent(batch, now, is_settled=is_settled)

    def test_it_ends_when_its_batch_or_a_later_one_is_stored(self) -> None:
        for sequence in (5, 7):
            assert self.explain(5, 0.0)
            self.notes.stored(Numbered(PRODUCER, 0, sequence, (9, 0)))
            assert (len(self.notes), self.notes.held_bytes) == (0, 0)
            assert not self.explain(8, 1.0, is_settled=True)

    def test_it_is_forgotten_after_two_minutes_and_may_begin_again(self) -> None:
        assert self.explain(5, 0.0)
        assert not self.explain(5, NOTED_SECONDS - 1)
        assert self.explain(5, NOTED_SECONDS + 1)
        self.notes.expire(3 * NOTED_SECONDS)
        assert (len(self.notes), self.notes.held_bytes) == (0, 0)

    def test_another_epoch_is_waited_for_by_itself_and_an_earlier_one_is_not(self) -> None:
        assert self.explain(5, 0.0)
        assert self.explain(5, ELSEWHERE_SECONDS, epoch=1)
        assert not self.explain(5, ELSEWHERE_SECONDS + 1)

    def test_without_room_it_is_final(self) -> None:
        self.notes = RefusedSequences(lambda number: None, bytes_max=PRODUCER_BYTES + SEQUENCE_BYTES - 1)
        assert not self.explain(5, 0.0)
        assert self.notes.held_bytes == 0

    def test_nothing_is_explained_longer_than_it_may_last(self) -> None:
        rng = random.Random(1)
        began: float | None = None
        now = 0.0
        while now < 10_000:
            now += rng.expovariate(1.0)
            if rng.random() < 0.01:
                self.notes.stored(Numbered(PRODUCER, 0, 50, (9, 0)))
                began = None
            elif self.explain(rng.randrange(1, 50), now, is_settled=rng.random() < 0.5):
                began = now if began is None or now - began >= NOTED_SECONDS else began
                assert now - began < ELSEWHERE_SECONDS


class TestLastStored:
    """Since when a stream's batches have come by one origin."""

    def setup_method(self) -> None:
        self.clock = ManualClock()
        self.last = LastStored(self.clock, streams_max=10)

    def entry(self, origin: Origin, *, sequence: int = 7, producer_id: int = PRODUCER) -> PlacedBatch:
        produce = ProduceRequest(None, ALL_ACKS, 1000, [])
        request = PendingRequest(produce, correlation_id=0, version=9, appended_at=0.0, deadline=0.0)
        request.origin = origin
        batch = StagedBatch(1, 0, 100, 1, 0, producer_id, 0, sequence)
        return PlacedBatch(batch, 0, producer_id, False, request, ProducePartitionReply(0))

    async def test_a_route_is_settled_after_the_request_timeout_of_clients(self) -> None:
        first, second = Origin(1, 1, None), Origin(2, 1, None)
        assert not self.last.is_settled(self.entry(first))
        self.last.note(self.entry(first), is_appended=True)
        assert not self.last.is_settled(self.entry(first))
        await self.clock.advance(ELSEWHERE_SECONDS)
        self.last.note(self.entry(first), is_appended=True)
        assert self.last.is_settled(self.entry(first))
        assert not self.last.is_settled(self.entry(second))
        self.last.note(self.entry(second), is_appended=False)
        for origin in (first, second):
            assert not self.last.is_settled(self.entry(origin))

    @pytest.mark.parametrize(
        ("sequence", "is_appended", "issued", "settled"),
        [
            (0, True, (PRODUCER, 0), True),
            (1, True, (PRODUCER, 0), False),
            (0, False, (PRODUCER, 0), False),
            (0, True, (PRODUCER, 1), False),
            (0, True, (78, 0), False),
            (0, True, None, False),
        ],
    )
    def test_the_route_of_a_first_batch_is_settled_if_the_producer_id_was_given_out_over_it(
        self, sequence: int, is_appended: bool, issued: tuple[int, int] | None, settled: bool
    ) -> None:
        origin = Origin(1, 1, issued)
        self.last.note(self.entry(origin, sequence=sequence), is_appended=is_appended)
        assert self.last.is_settled(self.entry(origin)) is settled

    async def test_the_newest_streams_are_kept_in_bounded_memory(self) -> None:
        origin = Origin(1, 1, None)
        for number in range(100):
            self.last.note(self.entry(origin, producer_id=number), is_appended=True)
            self.last.note(self.entry(origin, producer_id=0), is_appended=True)
        await self.clock.advance(ELSEWHERE_SECONDS)
        assert all(self.last.is_settled(self.entry(origin, producer_id=number)) for number in (0, *range(92, 100)))
        assert self.last.held_bytes <= 2 * 10 * STREAM_BYTES
        assert 2 * STREAMS_MAX * STREAM_BYTES <= LAST_STORED_BYTES

    def test_agents_that_come_and_go_make_another_route_and_other_changes_do_not(self) -> None:
        origins, image, connection = RequestOrigins(), MetadataImage(), ClientConnection(3, "peer")
        made = [origins.origin(connection, image)]
        connection.given = GivenProducer((PRODUCER, 0), image.offset)
        for agents in ({2: AGENT}, {2: AGENT}, {2: replace(AGENT, broker_epoch=6)}, {2: replace(AGENT, fenced=True)}):
            image = replace(image, agents=MappingProxyType(agents), offset=image.offset + 1)
            made.append(origins.origin(connection, image))
        assert [origin.agent_changes for origin in made] == [0, 1, 1, 2, 3]
        assert {origin.issued for origin in made} == {None}
        connection.given, connection.origin = GivenProducer((PRODUCER, 0), image.offset), None
        assert origins.origin(connection, image).issued == (PRODUCER, 0)
