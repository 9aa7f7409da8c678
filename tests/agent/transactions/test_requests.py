"""The requests of transactional producers and of tools, in every version, on the rules of transactions in memory."""

from __future__ import annotations

import uuid
from types import MappingProxyType
from typing import Any

import pytest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
)
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from prometheus_client import CollectorRegistry

from headrace.agent.transactions.producer_requests import (
    FIRST_OF_BROKERS,
    FIRST_WITH_BUMP,
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    EndTxn,
    InitProducerId,
)
from headrace.agent.transactions.tool_requests import DescribeTransactions, ListTransactions, WriteTxnMarkers
from headrace.metastore.api.agents import TRANSACTION_VERSION, FeatureRange
from headrace.metastore.api.transactions import NO_PRODUCER, ProducerEpoch, TransactionState
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import RequestHandler
from headrace.protocol.typed import schema
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import a_request, call, versions_of
from tests.agent.cluster.standing_view import StandingView
from tests.agent.transactions.memory_transactions import MemoryTransactions

TX, TIMEOUT_MAX_MS = "tx", 900_000
TOPIC = TopicImage(uuid.UUID(int=100), 100, "t", 2, 2, (0, 0))
FENCED = {True: ErrorCode.producer_fenced, False: ErrorCode.invalid_producer_epoch}
"""Error codes by whether the client knows the newer code."""


class World:
    """The handlers of one agent."""

    def __init__(self, level: int = 2) -> None:
        self.rows = MemoryTransactions()
        self.view = StandingView(4, node_id=1, broker_epoch=1)
        self.view.image = self.view.head = MetadataImage(
            topics_by_name=MappingProxyType({"t": TOPIC}),
            topics_by_id=MappingProxyType({TOPIC.topic_id: TOPIC}),
            topics_by_number=MappingProxyType({100: TOPIC}),
            features=MappingProxyType({TRANSACTION_VERSION: FeatureRange(0, level)}),
        )
        self.ended = 0
        self._ids = iter(range(500, 600))
        rows: Any = self.rows
        ids: Any = self
        self.init = InitProducerId(ids, self.view, rows, lambda: TIMEOUT_MAX_MS, on_ended=self._on_ended)
        self.add = AddPartitionsToTxn(self.view, rows)
        self.add_offsets = AddOffsetsToTxn(rows)
        self.metrics = CollectorRegistry()
        self.end = EndTxn(rows, ids, self._on_ended, self.metrics)
        self.list = ListTransactions(self.view, rows, lambda: self.rows.now_ms + 5_000, shared=None)
        self.describe = DescribeTransactions(self.view, rows, authorizer=None)
        self.mark = WriteTxnMarkers(self.view, rows, self._on_ended)

    async def next(self) -> int:
        """Do the same as ProducerIds."""
        return next(self._ids)

    async def producer(self, name: str = TX, asked: ProducerEpoch = NO_PRODUCER, version: int = 5) -> Any:
        """InitProducerId."""
        message = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=asked.producer_id,
            producer_epoch=asked.epoch,
        )
        return await call(self.init, message, version)

    async def begun(self, name: str = TX, *indexes: int) -> ProducerEpoch:
        """A producer with an open transaction."""
        answer = await self.producer(name)
        who = ProducerEpoch(answer.producer_id, answer.producer_epoch)
        assert set((await self.added(who, *(indexes or (0, 1)), name=name)).values()) == {0}
        return who

    async def added(
        self, who: ProducerEpoch, *indexes: int, name: str = TX, topic: str = "t", version: int = 3
    ) -> dict[tuple[str, int], int]:
        """AddPartitionsToTxn as clients send it: the code of each partition, of t's partition 0 too."""
        topics = {topic: list(indexes)} if topic == "t" else {"t": [0], topic: list(indexes)}
        entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[entry(name=each, partitions=numbers) for each, numbers in topics.items()],
        )
        answer = await call(self.add, message, version)
        return {
            (each.name, found.partition_index): found.partition_error_code
            for each in answer.results_by_topic_v3_and_below
            for found in each.results_by_partition
        }

    async def ended_by(self, who: ProducerEpoch, *, commits: bool, version: int) -> Any:
        """EndTxn."""
        message = EndTxnRequest(
            transactional_id=TX, producer_id=who.producer_id, producer_epoch=who.epoch, committed=commits
        )
        return await call(self.end, message, version)

    async def ask(self, handler: RequestHandler, api_key: int, version: int, **values: Any) -> Any:
        """A tool's request; the response as kio reads it."""
        found = schema(api_key, version)
        request = a_request(api_key, version, found.encode_request(found.request_type(**values)))
        response = await handler(request)
        assert response.buffers is not None
        frame = b"".join(response.buffers)
        return entity_reader(found.response_type)(frame, 5 if found.flexible else 4)[0]

    def _on_ended(self) -> None:
        self.ended += 1


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("version", versions_of(ApiKey.INIT_PRODUCER_ID))
async def test_each_instance_fences_the_one_before(world: World, version: int) -> None:
    first, second = await world.producer(version=version), await world.producer(version=version)
    assert [(first.error_code, first.producer_id, first.producer_epoch)] == [(0, 500, 0)]
    assert (second.error_code, second.producer_id, second.producer_epoch) == (0, 500, 1)
    codes = await world.added(ProducerEpoch(500, 0), 0, version=min(version, 3))
    assert set(codes.values()) == {FENCED[version >= 2]}


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_producer_keeps_its_id_until_another_takes_over(world: World, version: int) -> None:
    await world.producer()
    kept = await world.producer(asked=ProducerEpoch(500, 0), version=version)
    assert (kept.producer_id, kept.producer_epoch) == (500, 1)
    repeated = await world.producer(asked=ProducerEpoch(500, 0), version=version)
    assert (repeated.error_code, repeated.producer_epoch) == (0, 1)
    await world.producer()
    zombie = await world.producer(asked=ProducerEpoch(500, 1), version=version)
    assert (zombie.error_code, zombie.producer_id) == (FENCED[version >= 4], -1)


@pytest.mark.parametrize(
    ("name", "timeout_ms", "code"),
    [
        ("", 1, ErrorCode.invalid_request),
        ("x" * 2_001, 1, ErrorCode.invalid_request),
        ("nul\0", 1, ErrorCode.invalid_request),
        (TX, 0, ErrorCode.invalid_transaction_timeout),
        (TX, TIMEOUT_MAX_MS + 1, ErrorCode.invalid_transaction_timeout),
        (TX, TIMEOUT_MAX_MS, ErrorCode.none),
    ],
)
async def test_what_a_producer_may_ask_for(world: World, name: str, timeout_ms: int, code: int) -> None:
    message = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
    assert (await call(world.init, message, 4)).error_code == code


@pytest.mark.parametrize("failure", [UnavailableError("down"), OutcomeUnknownError("lost")])
async def test_what_may_have_happened_is_asked_again(world: World, failure: Exception) -> None:
    who = await world.begun()
    world.rows.failure = failure  # type: ignore[assignment]
    lost = await world.ended_by(who, commits=True, version=5)
    assert (lost.error_code, lost.producer_id) == (ErrorCode.coordinator_not_available, -1)
    again = await world.ended_by(who, commits=True, version=5)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, 500, who.epoch + 1)
    ends = "headrace_transactions_ended_total"
    counted = [world.metrics.get_sample_value(ends, {"outcome": outcome}) for outcome in ("commit", "abort")]
    assert counted == [1, 0], "what was answered with an error is not counted"
    assert world.ended == 3  # InitProducerId may have ended one, too


@pytest.mark.parametrize("version", versions_of(ApiKey.END_TXN))
async def test_an_end_is_answered_the_same_again(world: World, version: int) -> None:
    who = await world.begun()
    bumped = version >= FIRST_WITH_BUMP
    for _ in range(2):
        answer = await world.ended_by(who, commits=True, version=version)
        assert answer.error_code == 0
        if bumped:
            assert (answer.producer_id, answer.producer_epoch) == (500, who.epoch + 1)
    other_way = await world.ended_by(who, commits=False, version=version)
    assert other_way.error_code == ErrorCode.invalid_txn_state
    await world.producer()
    await world.producer()
    assert (await world.ended_by(who, commits=True, version=version)).error_code == FENCED[version >= 2]
    unknown = await world.ended_by(ProducerEpoch(7, 0), commits=True, version=version)
    assert unknown.error_code == ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize("version", range(FIRST_OF_BROKERS))
async def test_all_partitions_are_added_or_none(world: World, version: int) -> None:
    answer = await world.producer()
    who = ProducerEpoch(answer.producer_id, answer.producer_epoch)
    left_out = ErrorCode.operation_not_attempted
    for topic, code in (
        ("nothing", ErrorCode.unknown_topic_or_partition),
        ("__transaction_state", ErrorCode.topic_authorization_failed),
    ):
        codes = await world.added(who, 0, topic=topic, version=version)
        assert codes == {("t", 0): left_out, (topic, 0): code}
    assert world.rows.rows[TX].state is TransactionState.EMPTY
    assert await world.added(who, 0, 1, version=version) == {("t", 0): 0, ("t", 1): 0}
    assert world.rows.rows[TX].partition_keys == {TOPIC.key(0), TOPIC.key(1)}
    codes = await world.added(ProducerEpoch(7, 0), 0, version=version)
    assert set(codes.values()) == {ErrorCode.invalid_producer_id_mapping}


@pytest.mark.parametrize("version", [4, 5])
async def test_brokers_add_and_look(world: World, version: int) -> None:
    who = await world.begun(TX, 0)
    entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    topic = entry.AddPartitionsToTxnTopic
    found = {}
    for label, index, epoch, looks in (
        ("added", 0, who.epoch, True),
        ("not added", 1, who.epoch, True),
        ("fenced", 0, who.epoch + 1, True),
        ("adds", 1, who.epoch, False),
    ):
        transaction = entry(
            transactional_id=TX,
            producer_id=who.producer_id,
            producer_epoch=epoch,
            verify_only=looks,
            topics=[topic(name="t", partitions=[index])],
        )
        answer = await call(world.add, AddPartitionsToTxnRequest(transactions=[transaction]), version)
        (result,) = answer.results_by_transaction
        found[label] = result.topic_results[0].results_by_partition[0].partition_error_code
    assert found == {
        "added": 0,
        "not added": ErrorCode.transaction_abortable,
        "fenced": ErrorCode.producer_fenced,
        "adds": 0,
    }


@pytest.mark.parametrize("version", versions_of(ApiKey.ADD_OFFSETS_TO_TXN))
async def test_a_group_becomes_part_of_the_transaction(world: World, version: int) -> None:
    answer = await world.producer()
    codes = []
    for epoch, group in ((answer.producer_epoch, "g"), (answer.producer_epoch + 1, "h"), (0, "")):
        message = AddOffsetsToTxnRequest(
            transactional_id=TX, producer_id=answer.producer_id, producer_epoch=epoch, group_id=group
        )
        codes.append((await call(world.add_offsets, message, version)).error_code)
    assert codes == [0, FENCED[version >= 2], ErrorCode.invalid_group_id]
    assert world.rows.rows[TX].groups == {"g"}


@pytest.mark.parametrize("version", versions_of(ApiKey.LIST_TRANSACTIONS))
async def test_tools_list_by_state_producer_duration_and_pattern(world: World, version: int) -> None:
    await world.producer("idle")
    await world.begun("busy")

    async def listed(**filters: Any) -> list[str]:
        values = {"state_filters": (), "producer_id_filters": (), **filters}
        answer = await world.ask(world.list, ApiKey.LIST_TRANSACTIONS, version, **values)
        return [each.transactional_id for each in answer.transaction_states]

    assert await listed() == ["busy", "idle"]
    assert await listed(state_filters=("Ongoing", "Nonsense")) == ["busy"]
    assert await listed(producer_id_filters=(500,)) == ["idle"]
    if version >= 1:
        assert await listed(duration_filter=4_999) == ["busy"]
        assert await listed(duration_filter=5_000) == []
    if version >= 2:
        assert await listed(transactional_id_pattern="i.*") == ["idle"]
        assert await listed(transactional_id_pattern="i") == []


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("(a|a)+$", ErrorCode.none),
        ("(", ErrorCode.invalid_regular_expression),
        (r"(a)\1", ErrorCode.invalid_regular_expression),
    ],
)
async def test_a_pattern_of_a_tool_cannot_stop_the_agent(world: World, pattern: str, code: ErrorCode) -> None:
    """The first would never end in an engine that backtracks."""
    await world.producer("a" * 200 + "b")
    values = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": pattern}
    answer = await world.ask(world.list, ApiKey.LIST_TRANSACTIONS, 2, **values)
    assert (answer.error_code, answer.transaction_states) == (code, ())


async def test_a_description_says_what_is_open(world: World) -> None:
    who = await world.begun()
    answer = await world.ask(world.describe, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(TX, "unknown"))
    found, unknown = answer.transaction_states
    assert (found.error_code, found.transaction_state, found.producer_id) == (0, "Ongoing", who.producer_id)
    assert [(each.topic, each.partitions) for each in found.topics] == [("t", (0, 1))]
    assert found.transaction_start_time.timestamp() * 1000 == world.rows.now_ms
    assert unknown.error_code == ErrorCode.transactional_id_not_found


@pytest.mark.parametrize("version", [1])
async def test_a_tool_aborts_a_transaction_as_a_whole(world: World, version: int) -> None:
    who = await world.begun()
    entry = WriteTxnMarkersRequest.WritableTxnMarker
    codes = []
    for producer, commits in ((who, True), (ProducerEpoch(7, 0), False), (who, False), (who, False)):
        marker = entry(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_result=commits,
            coordinator_epoch=0,
            topics=[entry.WritableTxnMarkerTopic(name="t", partition_indexes=[1])],
        )
        answer = await call(world.mark, WriteTxnMarkersRequest(markers=[marker]), version)
        codes.append(answer.markers[0].topics[0].partitions[0].error_code)
    none_open = ErrorCode.invalid_txn_state
    assert codes == [ErrorCode.invalid_request, none_open, 0, none_open]
    assert world.rows.rows[TX].state is TransactionState.COMPLETE_ABORT
    assert (await world.ended_by(who, commits=True, version=3)).error_code == ErrorCode.producer_fenced


async def test_without_the_feature_no_transaction_begins() -> None:
    world = World(level=0)
    answer = await world.producer()
    assert (answer.error_code, answer.producer_id) == (ErrorCode.transactional_id_authorization_failed, -1)
    assert not world.rows.rows
