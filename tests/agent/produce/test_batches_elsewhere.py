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

from headrace.agent.produce.refused_sequences import (
    ELSEWHERE_SECONDS,
    NOTED_SECONDS,
    PRODUCER_BYTES,
    SEQUENCE_BYTES,
    Numbered,
    RefusedSequences,
)
from headrace.metastore.log.image import AgentImage
from headrace.protocol.request import ClientConnection
from tests.agent.produce.produce_world import ProduceWorld
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
        end = view.head.offset + 1
        view.image = view.head = replace(view.image, agents=MappingProxyType({2: AGENT}), offset=end, moved_at=end)

    def leader_moves(self, *, known: bool = True) -> None:
        """A reassignment of the partition, there and back again; `known`: by the agents."""
        view, model = self.worlds[0].view, self.worlds[0].model
        model.metadata_offset = end = view.head.offset + 2
        (topic,) = view.head.topics_by_name.values()
        self.worlds[0].put_topic(replace(topic, moved_at=end))
        assert view.head.offset == end
        if known:
            view.image = view.head


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
async def test_a_gap_is_waited_for_if_another_agent_stored_something_since() -> None:
    """The leader was another agent for a minute. This one has seen no move, and the connection to it stayed open."""
    async with Two() as two:
        assert await two.send(0, agent=0) == "none"
        await two.wait(ELSEWHERE_SECONDS + 1)
        assert await two.send(1, agent=0) == "none"
        for sequence in range(2, 10):
            assert await two.send(sequence, agent=1) == "none"
            await two.wait(7)
        assert await two.send(11, agent=0) == RETRIABLE
        assert await two.send(10, agent=1) == "none"
        assert await two.send(11, agent=0) == "none"
        await two.wait(ELSEWHERE_SECONDS)
        assert await two.send(13, agent=0) == FINAL


@pytest.mark.requirement("W7")
async def test_what_came_elsewhere_meanwhile_begins_the_time_again() -> None:
    """The metastore has as much as came here again, but the client was sent to another agent a moment ago."""
    async with Two() as two:
        assert [await two.send(0, agent=0), await two.send(1, agent=1), await two.send(2, agent=0)] == ["none"] * 3
        assert await two.send(4, agent=0) == RETRIABLE
        assert [await two.send(3, agent=1), await two.send(4, agent=0)] == ["none"] * 2


@pytest.mark.requirement("W7")
async def test_the_connection_over_which_the_id_was_given_out_is_no_exception_to_that() -> None:
    async with Two() as two:
        assert [await two.send(0, agent=0), await two.send(1, agent=1)] == ["none"] * 2
        assert await two.send(3, agent=0) == RETRIABLE
        assert [await two.send(2, agent=1), await two.send(3, agent=0)] == ["none"] * 2


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("seconds", [0, ELSEWHERE_SECONDS + 1])
@pytest.mark.parametrize("known", [True, False])
async def test_a_gap_is_waited_for_after_the_leader_moved_there_and_back(seconds: float, known: bool) -> None:
    """Batch 2 is on its way through the other agent, which has stored nothing. If the agent does not know of the move
    yet, the metadata log's end in the commit's answer shows that it may lack one."""
    async with Two() as two:
        assert await two.send(0) == "none"
        await two.wait(seconds)
        assert await two.send(1) == "none"
        two.leader_moves(known=known)
        await two.wait(ELSEWHERE_SECONDS + 1)  # a client learns of the way back late: nothing sent it away until then
        assert await two.send(3) == RETRIABLE
        assert [await two.send(2, agent=1), await two.send(3)] == ["none"] * 2


@pytest.mark.requirement("W7")
async def test_a_gap_is_final_once_batches_came_without_a_move_for_long_enough() -> None:
    async with Two() as two:
        assert await two.send(0) == "none"
        two.leader_moves()
        assert await two.send(1) == "none"
        await two.wait(ELSEWHERE_SECONDS)
        assert [await two.send(2), await two.send(4)] == ["none", FINAL]


@pytest.mark.requirement("W7")
async def test_a_gap_that_was_closed_through_another_agent_does_not_make_the_next_one_final() -> None:
    async with Two() as two:
        assert await two.send(0, agent=0) == "none"
        assert await two.send(2, agent=1) == RETRIABLE
        assert [await two.send(sequence, agent=0) for sequence in (1, 2, 3)] == ["none"] * 3
        await two.wait(ELSEWHERE_SECONDS + 10)
        assert await two.send(5, agent=1, client=two.worlds[1].connect()) == RETRIABLE
        assert await two.send(4, agent=0) == "none"
        await two.wait(ELSEWHERE_SECONDS)
        assert await two.send(6, agent=1) == RETRIABLE, "another batch is missing than before"
        await two.wait(ELSEWHERE_SECONDS)
        assert await two.send(6, agent=1) == FINAL


@pytest.mark.requirement("W7")
async def test_the_expected_sequence_is_not_in_a_clients_answer() -> None:
    """A commit's answer says it to the agent."""
    async with Two() as two:
        world = two.worlds[0]
        assert await two.send(0) == "none"
        batch = plain_batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=5)
        sent = asyncio.create_task(world.produce(two.clients[0], {"t": {0: batch}}))
        await world.clock.advance(0.1)
        ((_, answer),) = (sent.result() or {}).items()
        assert (answer.error, answer.base_offset, answer.log_append_time_ms, answer.log_start_offset) == (
            *(FINAL, -1, -1),
            -1,
        )
        assert answer.message == f"refused at commit: out_of_order producer_id={PRODUCER} sequence=5"


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
        self.notes = RefusedSequences(lambda number: None, -NOTED_SECONDS)

    def explain(self, sequence: int, now: float, *, epoch: int = 0, missing: int = 0, is_settled: bool = False) -> bool:
        batch = Numbered(PRODUCER, epoch, sequence, (9, 0))
        return self.notes.explain(batch, now) or self.notes.explain_by_another_agent(
            batch, now, missing=missing, is_settled=is_settled
        )

    def test_it_ends_when_its_batch_or_a_later_one_is_stored(self) -> None:
        for sequence in (5, 7):
            assert self.explain(5, 0.0)
            self.notes.stored(Numbered(PRODUCER, 0, sequence, (9, 0)))
            assert (len(self.notes), self.notes.held_bytes) == (0, 0)
            assert not self.explain(8, 1.0, is_settled=True)

    def test_it_is_another_one_once_another_sequence_is_missing(self) -> None:
        assert self.explain(5, 0.0, missing=2)
        assert not self.explain(5, ELSEWHERE_SECONDS, missing=2)
        assert not self.explain(7, ELSEWHERE_SECONDS, missing=6, is_settled=True)
        assert self.explain(7, ELSEWHERE_SECONDS, missing=6)
        assert not self.explain(7, 2 * ELSEWHERE_SECONDS, missing=6)
        assert len(self.notes) == 1

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
        self.notes = RefusedSequences(
            lambda number: None, -NOTED_SECONDS, bytes_max=PRODUCER_BYTES + SEQUENCE_BYTES - 1
        )
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
