"""What an agent remembers of how a producer's batches came, and when that settles a gap (decisions/0096)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import MappingProxyType

import pytest

from headrace.agent.produce.last_stored import STREAM_BYTES, STREAMS_MAX, LastStored, origin_of
from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS
from headrace.agent.produce.requests import ALL_ACKS, Origin, PendingRequest, PlacedBatch
from headrace.config.memory_budget import LAST_STORED_BYTES
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, StagedBatch
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.protocol.produce_codec import ProducePartitionReply, ProduceRequest
from headrace.protocol.request import ClientConnection, GivenProducer
from tests.manual_clock import ManualClock

PRODUCER = 77
AGENT = AgentImage(2, 5, uuid.UUID(int=5), "host", 9092, None, fenced=False)


class TestLastStored:
    """Since when a stream's batches have come by one connection."""

    node_id = 1

    def setup_method(self) -> None:
        self.clock = ManualClock()
        self.image = MetadataImage(offset=50)
        self.last = LastStored(self.clock, self, streams_max=10)  # type: ignore[arg-type]

    def entry(
        self, origin: Origin, *, sequence: int = 7, epoch: int = 0, alias: int = -1, producer_id: int = PRODUCER
    ) -> PlacedBatch:
        produce = ProduceRequest(None, ALL_ACKS, 1000, [])
        request = PendingRequest(produce, correlation_id=0, version=9, appended_at=0.0, deadline=0.0)
        request.origin = origin
        batch = StagedBatch(1, 0, 100, 1, 0, producer_id, epoch, sequence, alias=alias)
        return PlacedBatch(batch, 0, producer_id, False, request, ProducePartitionReply(0))

    def store(self, origin: Origin, sequence: int, *, is_appended: bool = True, epoch: int = 0) -> None:
        self.last.note(self.entry(origin, sequence=sequence, epoch=epoch), is_appended=is_appended)

    def is_settled(self, origin: Origin, *, expected: int = 8, known_until: int = 50, epoch: int = 0) -> bool:
        answer = BatchAnswer(BatchOutcome.OUT_OF_ORDER, -1, -1, expected, known_until)
        return self.last.is_settled(self.entry(origin, sequence=99, epoch=epoch), answer)

    async def test_a_connection_is_settled_after_the_request_timeout_of_clients(self) -> None:
        first, second = Origin(1, None), Origin(2, None)
        assert not self.is_settled(first)
        self.store(first, 6)
        assert not self.is_settled(first, expected=7)
        await self.clock.advance(ELSEWHERE_SECONDS)
        self.store(first, 7)
        assert self.is_settled(first)
        assert not self.is_settled(second)
        self.store(second, 7, is_appended=False)
        for origin in (first, second):
            assert not self.is_settled(origin)

    async def test_what_the_metastore_says_beyond_what_came_here_unsettles_it(self) -> None:
        origin = Origin(1, None)
        self.store(origin, 6)
        await self.clock.advance(ELSEWHERE_SECONDS)
        self.store(origin, 7)
        assert [self.is_settled(origin, expected=expected) for expected in (-1, 0, 7, 8, 9)] == [
            *(False, True, True, True),
            False,
        ]
        assert [self.is_settled(origin, expected=expected, epoch=1) for expected in (-1, 0, 1)] == [False, True, False]
        assert [self.is_settled(origin, known_until=end) for end in (-1, 0, 50, 51)] == [False, True, True, False]

    @pytest.mark.parametrize(
        ("sequence", "is_appended", "epoch"), [(9, True, 0), (8, False, 0), (1, True, 1), (0, False, 1)]
    )
    async def test_a_batch_that_shows_that_others_came_elsewhere_begins_the_time_again(
        self, sequence: int, is_appended: bool, epoch: int
    ) -> None:
        origin = Origin(1, None)
        self.store(origin, 6)
        await self.clock.advance(ELSEWHERE_SECONDS)
        self.store(origin, 7)
        self.store(origin, 7, is_appended=False)
        assert self.is_settled(origin)
        self.store(origin, sequence, is_appended=is_appended, epoch=epoch)
        assert not self.is_settled(origin, expected=sequence + 1, epoch=epoch)
        await self.clock.advance(ELSEWHERE_SECONDS)
        assert self.is_settled(origin, expected=sequence + 1, epoch=epoch)

    async def test_the_next_epoch_continues_if_its_first_batch_came_here(self) -> None:
        origin = Origin(1, None)
        self.store(origin, 7)
        await self.clock.advance(ELSEWHERE_SECONDS)
        self.store(origin, 0, epoch=1)
        assert self.is_settled(origin, expected=1, epoch=1)

    async def test_a_move_of_all_leaders_or_of_the_topics_unsettles_it(self) -> None:
        origin, topic = Origin(1, None), TopicImage(uuid.UUID(int=9), 0, "t", 2, 2, (0, 0))
        self.image = replace(self.image, topics_by_number=MappingProxyType({0: topic}))
        for moved in (
            replace(self.image, moved_at=40),
            replace(self.image, topics_by_number=MappingProxyType({0: replace(topic, moved_at=45)}), moved_at=40),
        ):
            self.store(origin, 7)
            await self.clock.advance(ELSEWHERE_SECONDS)
            self.store(origin, 8)
            assert self.is_settled(origin, expected=9)
            self.image = moved
            assert not self.is_settled(origin, expected=9)
            await self.clock.advance(ELSEWHERE_SECONDS)
            assert not self.is_settled(origin, expected=9), "nothing came since"
            self.last = LastStored(self.clock, self, streams_max=10)  # type: ignore[arg-type]

    async def test_an_alias_has_separate_sequences(self) -> None:
        origin = Origin(1, None)
        self.store(origin, 7)
        self.last.note(self.entry(origin, sequence=100, alias=1), is_appended=True)
        await self.clock.advance(ELSEWHERE_SECONDS)
        assert self.is_settled(origin, expected=8)
        answer = BatchAnswer(BatchOutcome.OUT_OF_ORDER, -1, -1, 101, 50)
        assert self.last.is_settled(self.entry(origin, sequence=200, alias=1), answer)

    @pytest.mark.parametrize(
        ("sequence", "is_appended", "given", "settled"),
        [
            (0, True, GivenProducer((PRODUCER, 0), 40), True),
            (0, True, GivenProducer((PRODUCER, 0), 39), False),
            (1, True, GivenProducer((PRODUCER, 0), 40), False),
            (0, False, GivenProducer((PRODUCER, 0), 40), False),
            (0, True, GivenProducer((PRODUCER, 1), 40), False),
            (0, True, GivenProducer((78, 0), 40), False),
            (0, True, None, False),
        ],
    )
    def test_a_first_batch_settles_the_connection_over_which_the_producer_id_was_given_out(
        self, sequence: int, is_appended: bool, given: GivenProducer | None, settled: bool
    ) -> None:
        """Unless a leader moved since."""
        self.image = replace(self.image, moved_at=40)
        self.store(Origin(1, given), sequence, is_appended=is_appended)
        assert self.is_settled(Origin(1, given), expected=sequence + 1) is settled

    @pytest.mark.parametrize(("node_ids", "settled"), [((1,), True), ((1, 2), False), ((2,), False)])
    async def test_another_agent_may_have_sent_the_client_elsewhere_meanwhile(
        self, node_ids: tuple[int, ...], settled: bool
    ) -> None:
        """It may lag behind the metadata log, and answer with an earlier leader."""
        agents = {node_id: replace(AGENT, node_id=node_id) for node_id in node_ids}
        self.image = replace(self.image, moved_at=40, agents=MappingProxyType(agents))
        origin = Origin(1, GivenProducer((PRODUCER, 0), 40))
        self.store(origin, 0)
        assert self.is_settled(origin, expected=1) is settled
        await self.clock.advance(ELSEWHERE_SECONDS)
        assert self.is_settled(origin, expected=1)

    async def test_the_newest_streams_are_kept_in_bounded_memory(self) -> None:
        origin = Origin(1, None)
        for number in range(100):
            self.last.note(self.entry(origin, producer_id=number), is_appended=True)
            self.last.note(self.entry(origin, producer_id=0), is_appended=False)
        await self.clock.advance(ELSEWHERE_SECONDS)
        answer = BatchAnswer(BatchOutcome.OUT_OF_ORDER, -1, -1, 8, 50)
        assert all(
            self.last.is_settled(self.entry(origin, producer_id=number), answer) for number in (0, *range(92, 100))
        )
        assert self.last.held_bytes <= 2 * 10 * STREAM_BYTES
        assert 2 * STREAMS_MAX * STREAM_BYTES <= LAST_STORED_BYTES

    def test_the_origin_of_a_connection_is_the_same_until_another_producer_id_is_given_out(self) -> None:
        connection = ClientConnection(3, "peer")
        assert origin_of(connection) is origin_of(connection) == Origin(3, None)
        connection.given, connection.origin = GivenProducer((PRODUCER, 0), 7), None
        assert origin_of(connection) == Origin(3, connection.given)
