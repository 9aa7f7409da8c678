"""Share sessions, and the codes of ShareFetch and ShareAcknowledge as Kafka gives them; refusals change nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.fetch.sessions import AllowedTopics
from headrace.agent.fetch.share.deliver import AcquiredRange, ShareDelivery, ShareReader
from headrace.agent.fetch.share.handlers import ShareHandlers
from headrace.agent.fetch.share.sessions import SESSION_BYTES, SESSION_PARTITION_BYTES, ShareSessions
from headrace.agent.limits.client_memory import text_bytes
from headrace.agent.peers.share_turns import PartitionTurn, ShareTurn, TurnAnswer, decode_answer, decode_turn, encode
from headrace.config.settings import Settings
from headrace.metastore.api.agents import SHARE_VERSION, FeatureRange
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.protocol.request import ClientConnection, Request
from headrace.protocol.typed import schema
from headrace.storage.errors import InvalidError
from tests.agent.cluster.standing_view import StandingView
from tests.manual_clock import ManualClock

TOPIC_ID = uuid.UUID(int=5)
FETCH, ACKNOWLEDGE = 78, 79


class _Reader:
    async def read(
        self, acquired: Mapping[int, Sequence[AcquiredRange]], max_bytes: int, memory: Any, **how: Any
    ) -> dict[int, ShareDelivery]:
        return {key: ShareDelivery(records=[b"r"], acquired=list(ranges)) for key, ranges in acquired.items()}


class Sharing:
    """One agent's handlers, in front of an owner that gives the first record of each partition that is wanted.
    `on_turn` is called while it is asked.
    """

    def __init__(self, most: int = 4, settings: Settings | None = None) -> None:
        """`settings`: whether ACLs are enforced; they are not by default."""
        self.view = StandingView(1, node_id=1, broker_epoch=1)
        topic = TopicImage(TOPIC_ID, 9, "t", 2, 2, (0, 0))
        self.view.head = self.view.image = replace(
            MetadataImage(),
            topics_by_id=MappingProxyType({TOPIC_ID: topic}),
            features=MappingProxyType({SHARE_VERSION: FeatureRange(0, 1)}),
        )
        self.turns: list[ShareTurn] = []
        self.answer: TurnAnswer | None = None
        self.is_lost = False
        self.on_turn: Callable[[], None] = lambda: None
        authorizer = Authorizer(settings or Settings(), self.view)
        allowed = AllowedTopics(authorizer, self.view) if authorizer.is_on else None
        reader: Any = _Reader()
        assert isinstance(reader, _Reader | ShareReader)
        self.clock, self.max_wait = ManualClock(), timedelta(0)
        self.handlers = ShareHandlers(
            self.view,  # type: ignore[arg-type]
            ShareSessions(lambda: most),
            reader,
            self._ask,
            self.clock,
            allowed,
        )
        self.connection = ClientConnection(1, "10.0.0.1:5")

    async def _ask(self, turn: ShareTurn, client: ClientConnection, received_at: float) -> TurnAnswer | None:
        self.turns.append(decode_turn(encode(turn)))
        self.on_turn()
        if self.is_lost:
            return None
        parts = [
            PartitionTurn(each.key, acquired=[(0, 0, 1)] if each.wants and turn.max_records else [])
            for each in turn.partitions
        ]
        return decode_answer(encode(self.answer or TurnAnswer(0, parts, 30_000)))

    async def fetch(
        self,
        epoch: int,
        partitions: Mapping[int, Sequence[tuple[int, int, tuple[int, ...]]]] | None = None,
        *,
        topic_id: uuid.UUID = TOPIC_ID,
        connection: ClientConnection | None = None,
        **more: Any,
    ) -> Any:
        """`partitions`: index -> (first offset, last offset, types)."""
        types: Any = schema(FETCH, 2)._request_module
        parts = tuple(
            types.FetchPartition(partition_index=index, acknowledgement_batches=_batches(types, acks))
            for index, acks in (partitions or {}).items()
        )
        fields: dict[str, Any] = {"group_id": "g", "member_id": "m", "max_records": 5, "share_acquire_mode": 1}
        fields |= {"is_renew_ack": False, "forgotten_topics_data": (), "max_wait": self.max_wait, "min_bytes": 1}
        fields |= {"max_bytes": 100, **more}
        entity = types.ShareFetchRequest(
            share_session_epoch=epoch,
            batch_size=5,
            topics=(types.FetchTopic(topic_id=topic_id, partitions=parts),) if parts else (),
            **fields,
        )
        request = Request(connection or self.connection, FETCH, 2, 1, None, memoryview(b""), 0.0, entity)
        response = await self.handlers.fetch(request)
        assert response.buffers, "it can be encoded"
        return response.entity

    async def acknowledge(self, epoch: int, acks: Mapping[int, Sequence[tuple[int, int, tuple[int, ...]]]]) -> Any:
        types: Any = schema(ACKNOWLEDGE, 2)._request_module
        parts = tuple(
            types.AcknowledgePartition(partition_index=index, acknowledgement_batches=_batches(types, each))
            for index, each in acks.items()
        )
        entity = types.ShareAcknowledgeRequest(
            group_id="g",
            member_id="m",
            share_session_epoch=epoch,
            is_renew_ack=False,
            topics=(types.AcknowledgeTopic(topic_id=TOPIC_ID, partitions=parts),),
        )
        response = await self.handlers.acknowledge(
            Request(self.connection, ACKNOWLEDGE, 2, 1, None, memoryview(b""), 0.0, entity)
        )
        assert response.buffers
        return response.entity


def _batches(types: Any, acks: Sequence[tuple[int, int, tuple[int, ...]]]) -> tuple[Any, ...]:
    return tuple(
        types.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=kinds)
        for first, last, kinds in acks
    )


def _parts(answer: Any) -> dict[int, Any]:
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


@pytest.fixture
def sharing() -> Sharing:
    return Sharing()


async def test_a_session_keeps_its_partitions_from_request_to_request(sharing: Sharing) -> None:
    assert _parts(await sharing.fetch(0, {0: (), 1: ()})).keys() == {0, 1}
    answer = await sharing.fetch(1, {0: [(0, 0, (1,))]})
    assert _parts(answer)[0].acknowledge_error_code == 0
    assert answer.acquisition_lock_timeout == timedelta(seconds=30)
    assert len(sharing.turns[-1].partitions) == 2
    assert sharing.turns[-1].partitions[0].acks == [(0, 0, b"\x01")]
    assert (await sharing.acknowledge(2, {1: [(0, 0, (2,))]})).error_code == 0
    assert (await sharing.fetch(-1, {0: [(1, 2, (1, 3))]})).error_code == 0
    assert sharing.turns[-1].closes
    assert (await sharing.fetch(3)).error_code == ErrorCode.share_session_not_found


async def test_epochs_that_are_not_the_next_one_change_nothing(sharing: Sharing) -> None:
    assert (await sharing.acknowledge(0, {0: [(0, 0, (1,))]})).error_code == ErrorCode.invalid_share_session_epoch
    assert (await sharing.acknowledge(1, {0: [(0, 0, (1,))]})).error_code == ErrorCode.share_session_not_found
    assert (await sharing.fetch(0, {0: [(0, 0, (1,))]})).error_code == ErrorCode.invalid_request
    await sharing.fetch(0, {0: ()})
    asked = len(sharing.turns)
    assert (await sharing.fetch(2)).error_code == ErrorCode.invalid_share_session_epoch
    assert (await sharing.fetch(1, connection=ClientConnection(2, "10.0.0.1:6"))).error_code == (
        ErrorCode.share_session_not_found
    ), "of another connection"
    assert len(sharing.turns) == asked
    assert (await sharing.fetch(1)).error_code == 0


async def test_a_session_ends_with_its_connection_and_there_are_only_so_many() -> None:
    sharing = Sharing(most=4)
    clients = [ClientConnection(number, "10.0.0.1:5") for number in range(3)]
    codes = [(await sharing.fetch(0, {0: ()}, connection=client)).error_code for client in clients]
    assert codes == [0, 0, ErrorCode.share_session_limit_reached], "one address has half of them"
    other = ClientConnection(9, "10.0.0.2:5")
    assert (await sharing.fetch(0, {0: ()}, connection=other)).error_code == 0
    assert clients[0].when_closed is not None
    clients[0].when_closed()
    assert (await sharing.fetch(0, {0: ()}, connection=clients[2])).error_code == 0


@pytest.mark.parametrize(
    "acks",
    [
        [(-1, 2, (1,))],
        [(5, 4, (1,))],
        [(0, 4, (1,)), (4, 6, (1,))],
        [(5, 6, (1,)), (0, 1, (1,))],
        [(0, 4, (1, 1))],
        [(0, 4, ())],
        [(0, 0, (5,))],
        [(0, 0, (-1,))],
        [(0, 0, (4,))],
    ],
)
async def test_what_no_client_sends_is_refused_for_its_partition(
    sharing: Sharing, acks: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    await sharing.fetch(0, {0: (), 1: ()})
    parts = _parts(await sharing.fetch(1, {0: acks, 1: [(3, 4, (1, 2))]}))
    assert parts[0].acknowledge_error_code == ErrorCode.invalid_request
    assert parts[1].acknowledge_error_code == 0
    assert [each.acks for each in sharing.turns[-1].partitions] == [[], [(3, 4, b"\x01\x02")]]
    parts = _parts(await sharing.acknowledge(2, {0: acks, 1: [(5, 5, (0,))]}))
    assert (parts[0].error_code, parts[1].error_code) == (ErrorCode.invalid_request, 0)


async def test_a_renewal_asks_for_no_records(sharing: Sharing) -> None:
    await sharing.fetch(0, {0: ()})
    nothing = {"max_records": 0, "max_bytes": 0, "min_bytes": 0, "max_wait": timedelta(0)}
    for limit in ({"max_records": 1}, {"max_bytes": 1}, {"min_bytes": 1}, {"max_wait": timedelta(seconds=1)}):
        refused = await sharing.fetch(1, {0: [(0, 0, (4,))]}, is_renew_ack=True, **nothing | limit)
        assert refused.error_code == ErrorCode.invalid_request
    parts = _parts(await sharing.fetch(1, {0: [(0, 0, (4,))]}, is_renew_ack=True, **nothing))
    assert (parts[0].acknowledge_error_code, parts[0].acquired_records) == (0, ())
    assert sharing.turns[-1].max_records == 0


async def test_unknown_topics_modes_and_names(sharing: Sharing) -> None:
    parts = _parts(await sharing.fetch(0, {0: ()}, topic_id=uuid.UUID(int=99)))
    assert parts[0].error_code == ErrorCode.unknown_topic_id
    parts = _parts(await sharing.fetch(0, {7: ()}))
    assert parts[7].error_code == ErrorCode.unknown_topic_or_partition
    for wrong in ({"share_acquire_mode": 2}, {"group_id": ""}, {"member_id": None}, {"group_id": "a\0"}):
        assert (await sharing.fetch(0, {0: ()}, **wrong)).error_code == ErrorCode.invalid_request
    assert (await sharing.fetch(0, {0: ()}, max_records=-5)).error_code == 0
    assert sharing.turns[-1].max_records == 0


async def test_without_the_owners_answer_the_client_is_sent_to_ask_again(sharing: Sharing) -> None:
    await sharing.fetch(0, {0: ()})
    sharing.is_lost = True
    part = _parts(await sharing.fetch(1, {0: [(0, 0, (1,))]}))[0]
    assert part.error_code == part.acknowledge_error_code == ErrorCode.not_leader_or_follower
    assert _parts(await sharing.acknowledge(2, {0: [(0, 0, (1,))]}))[0].error_code == ErrorCode.not_leader_or_follower
    sharing.is_lost, sharing.answer = False, TurnAnswer(ErrorCode.group_id_not_found)
    assert (await sharing.fetch(3)).error_code == ErrorCode.group_id_not_found


async def test_nothing_is_asked_while_share_version_is_0(sharing: Sharing) -> None:
    sharing.view.image = replace(sharing.view.image, features=MappingProxyType({}))
    assert (await sharing.fetch(0, {0: ()})).error_code == ErrorCode.unsupported_version
    assert (await sharing.acknowledge(1, {})).error_code == ErrorCode.unsupported_version
    assert not sharing.turns


def test_turns_that_are_malformed_are_refused() -> None:
    for data in (b"", b"\x93", encode(["g"]), encode({"group_id": "g"}), b"\x91" * 5000):
        with pytest.raises(InvalidError):
            decode_turn(data)
        with pytest.raises(InvalidError):
            decode_answer(data)


async def test_the_owner_hears_of_the_end_of_a_session_without_partitions(sharing: Sharing) -> None:
    """It remembers the connection of those that the session had before. What it answers is no error of the session."""
    await sharing.fetch(0, {0: ()})
    types: Any = schema(FETCH, 2)._request_module
    forgotten = (types.ForgottenTopic(topic_id=TOPIC_ID, partitions=(0,)),)
    assert (await sharing.fetch(1, forgotten_topics_data=forgotten)).error_code == 0
    sharing.answer = TurnAnswer(ErrorCode.group_id_not_found)
    assert (await sharing.fetch(-1)).error_code == 0
    assert (sharing.turns[-1].closes, sharing.turns[-1].partitions) == (True, [])


def _refs(count: int, first: int = 0) -> list[tuple[uuid.UUID, int]]:
    return [(TOPIC_ID, first + each) for each in range(count)]


def _opened(sessions: ShareSessions, connection: ClientConnection, count: int, member: str = "m") -> ErrorCode:
    return sessions.fetch(connection, ("g", member), 0, _refs(count), (), acknowledges=False).error


def test_sessions_have_a_limit_in_bytes_and_one_address_at_most_half_of_it() -> None:
    """A client names any partitions, also ones that do not exist, and chooses its ids."""
    refused: list[str] = []
    limit = 2 * (SESSION_BYTES + text_bytes("g", "m") + 100 * SESSION_PARTITION_BYTES)
    sessions = ShareSessions(lambda: 1000, limit, refused.append)
    first, second, other = (ClientConnection(n, f"10.0.0.{n}:1") for n in range(1, 4))
    also_first = ClientConnection(4, "10.0.0.1:2")
    assert _opened(sessions, first, 101) is ErrorCode.share_session_limit_reached
    assert _opened(sessions, first, 100) is ErrorCode.none
    assert _opened(sessions, first, 100) is ErrorCode.none, "instead of its last one"
    assert _opened(sessions, also_first, 1) is ErrorCode.share_session_limit_reached
    assert _opened(sessions, second, 0, "m" * 32_767) is ErrorCode.share_session_limit_reached
    assert _opened(sessions, second, 90) is ErrorCode.none
    assert _opened(sessions, other, 10) is ErrorCode.share_session_limit_reached, "all is in use"
    assert sessions.fetch(second, ("g", "m"), 1, _refs(5, 90), (), acknowledges=False).error is ErrorCode.none
    grown = sessions.fetch(second, ("g", "m"), 2, _refs(6, 95), (), acknowledges=False)
    assert (grown.error, len(sessions)) == (ErrorCode.share_session_limit_reached, 1)
    shrunk = sessions.fetch(first, ("g", "m"), 1, _refs(5, 100), _refs(10), acknowledges=False)
    assert (shrunk.error, sessions.partitions) == (ErrorCode.none, 95)
    assert refused == ["share.sessions"] * 5
    assert first.when_closed is not None
    first.when_closed()
    assert (sessions.in_use_bytes, sessions.partitions, len(sessions)) == (0, 0, 0)
    assert _opened(sessions, second, 100) is ErrorCode.none
