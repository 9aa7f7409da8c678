"""Check which agent serves a request: one hop, each element once; COORDINATOR_NOT_AVAILABLE after a lost link."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol import consumer as consumer_api
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.producer import TxnOffsetCommitRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult
from kio.schema.describe_groups.v6.response import DescribedGroup
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.response import ListedGroup
from kio.schema.offset_fetch.v10.response import OffsetFetchResponseGroup
from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic

from headrace.agent.apis.all_apis import ROWS
from headrace.agent.apis.api_row import routes_of
from headrace.agent.peers.forwarding.forwarding import Forwarding
from headrace.agent.peers.forwarding.links import LOST, Answer
from headrace.agent.peers.forwarding.wire import ForwardOutcome
from headrace.metastore.log.image import AgentImage
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import TooManyElementsError
from tests.agent.client_calls import a_request, read_reply

OWN, OTHER, THIRD = 1, 2, 3
COORDINATORS = {"own": OWN, "other": OTHER, "third": THIRD}
NOT_AVAILABLE = ErrorCode.coordinator_not_available

ROUTES = routes_of(ROWS)


def _agent(node_id: int) -> Any:
    return SimpleNamespace(node_id=node_id, live=True)


class Cluster:
    """Agent 1, with handlers that name their agent; links that pass on to agents 2 and 3, or are lost."""

    node_id = OWN

    def __init__(self) -> None:
        self.served: list[tuple[int, int]] = []
        self.lost = False
        self.agents = {number: _agent(number) for number in (OWN, OTHER, THIRD)}
        self.image = SimpleNamespace(live_agents=lambda: list(self.agents.values()), agents=self.agents)
        self.is_set = True
        shared: Any = SimpleNamespace(forwards=lambda listener: self.is_set and listener == "PLAINTEXT")
        links: Any = SimpleNamespace(forward=self._forward)
        unavailable = {key: self._handler(0) for key in ROUTES if key not in (32, 44)}
        view: Any = self
        self._forwarding = Forwarding(view, shared, links, unavailable)

    def coordinator(self, group_id: str) -> AgentImage | None:
        found = COORDINATORS.get(group_id)
        return None if found is None else self.agents[found]

    async def ask(self, message: Any, version: int, **connection: Any) -> Any:
        request = a_request(message.API_KEY, version, message.encode(version=version))
        request = dataclasses.replace(request, connection=dataclasses.replace(request.connection, **connection))
        handler = self._forwarding.wrap(ROUTES[request.api_key], self._handler(OWN))
        return read_reply(request, await handler(request))

    def _forward(self, agent: Any, request: Request) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.lost:
            answer.set_result(LOST)
        else:
            asyncio.get_running_loop().create_task(self._at(agent.node_id, request, answer))
        return answer

    async def _at(self, node_id: int, request: Request, answer: asyncio.Future[Answer]) -> None:
        response = await self._handler(node_id)(request)
        assert response.buffers is not None
        answer.set_result((ForwardOutcome.ANSWERED, b"".join(response.buffers)))

    def _handler(self, node_id: int) -> Any:
        async def handle(request: Request) -> Response:
            self.served.append((node_id, request.api_key))
            return reply(request, _answer(request, node_id))

        return handle


def _answer(request: Request, node_id: int) -> Any:
    """Error code 0 from agent 1, UNKNOWN_SERVER_ERROR from agent 2, OFFSET_OUT_OF_RANGE from agent 3, and
    COORDINATOR_NOT_AVAILABLE from nowhere: the test sees who answered."""
    code = CODES[node_id]
    found, entity = decode(request)
    none = ErrorCode.none
    match request.api_key:
        case 12:
            return found.response(error_code=code)
        case 15:
            groups = tuple(
                found.make(
                    DescribedGroup,
                    error_code=code,
                    error_message=None,
                    group_id=name,
                    group_state="",
                    protocol_type="",
                    protocol_data="",
                    members=(),
                )
                for name in entity.groups
            )
            return found.response(groups=groups)
        case 42:
            results = tuple(
                found.make(DeletableGroupResult, group_id=name, error_code=code) for name in entity.groups_names
            )
            return found.response(results=results)
        case 16:
            listed = found.make(
                ListedGroup, group_id=f"of {node_id}", protocol_type="", group_state="", group_type="classic"
            )
            broken = code is NOT_AVAILABLE
            return found.response(error_code=code if broken else none, groups=() if broken else (listed,))
        case 28:
            refused = found.make(TxnOffsetCommitResponsePartition, partition_index=0, error_code=code)
            topic = found.make(TxnOffsetCommitResponseTopic, name="t", partitions=(refused,))
            return found.response(topics=(topic,))
    assert request.api_key == 9
    if request.api_version < 8:
        return found.response(topics=(), error_code=code)
    fetched = tuple(
        found.make(OffsetFetchResponseGroup, group_id=group.group_id, topics=(), error_code=code)
        for group in entity.groups
    )
    return found.response(groups=fetched)


CODES = {
    0: NOT_AVAILABLE,
    OWN: ErrorCode.none,
    OTHER: ErrorCode.unknown_server_error,
    THIRD: ErrorCode.offset_out_of_range,
}


def _heartbeat(group: str) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=1, member_id="m", group_instance_id=None)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("version", [0, 3, 4])
@pytest.mark.parametrize(("group", "node_id"), [*COORDINATORS.items(), ("nobody's", OWN)])
async def test_a_request_of_one_group_goes_to_its_coordinator(
    cluster: Cluster, version: int, group: str, node_id: int
) -> None:
    assert (await cluster.ask(_heartbeat(group), version)).error_code == CODES[node_id]
    assert cluster.served == [(node_id, 12)]


async def test_it_is_not_forwarded_twice_nor_from_other_listeners_nor_without_the_mode(cluster: Cluster) -> None:
    for connection in ({"is_forwarded": True}, {"listener": "INTERNAL"}):
        assert (await cluster.ask(_heartbeat("other"), 4, **connection)).error_code == 0
    cluster.is_set = False
    assert (await cluster.ask(_heartbeat("other"), 4)).error_code == 0
    assert {node_id for node_id, _ in cluster.served} == {OWN}


async def test_a_lost_link_is_answered_as_kafka_does(cluster: Cluster) -> None:
    cluster.lost = True
    assert (await cluster.ask(_heartbeat("other"), 4)).error_code == NOT_AVAILABLE
    assert cluster.served == [(0, 12)], "not sent again"


@pytest.mark.parametrize("lost", [False, True])
async def test_groups_of_several_agents_are_asked_there_and_joined(cluster: Cluster, lost: bool) -> None:
    cluster.lost = lost
    away = {OTHER: NOT_AVAILABLE, THIRD: NOT_AVAILABLE} if lost else CODES
    expected = {"own": 0, "other": away[OTHER], "third": away[THIRD], "nobody's": 0}
    described = await cluster.ask(DescribeGroupsRequest(groups=list(expected)), 5)
    assert {group.group_id: group.error_code for group in described.groups} == expected
    deleted = await cluster.ask(DeleteGroupsRequest(groups_names=list(expected)), 2)
    assert {each.group_id: each.error_code for each in deleted.results} == expected
    group = consumer_api.OffsetFetchRequest.OffsetFetchRequestGroup
    asked = OffsetFetchRequest(groups=[group(group_id=name, topics=None) for name in expected], require_stable=False)
    fetched = await cluster.ask(asked, 8)
    assert {each.group_id: each.error_code for each in fetched.groups} == expected


async def test_groups_of_one_agent_are_one_request(cluster: Cluster) -> None:
    await cluster.ask(DescribeGroupsRequest(groups=["other", "other"]), 5)
    await cluster.ask(DescribeGroupsRequest(groups=["own", "nobody's"]), 5)
    await cluster.ask(OffsetFetchRequest(group_id="third", topics=None), 7)
    assert cluster.served == [(OTHER, 15), (OWN, 15), (THIRD, 9)]


async def test_all_agents_list_their_groups(cluster: Cluster) -> None:
    listed = await cluster.ask(ListGroupsRequest(states_filter=[]), 4)
    assert (listed.error_code, sorted(group.group_id for group in listed.groups)) == (0, ["of 1", "of 2", "of 3"])
    cluster.lost = True
    listed = await cluster.ask(ListGroupsRequest(states_filter=[]), 4)
    assert (listed.error_code, [group.group_id for group in listed.groups]) == (NOT_AVAILABLE, ["of 1"])


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(ForwardOutcome.CLOSE, CloseConnection), (ForwardOutcome.TOO_MANY_ELEMENTS, TooManyElementsError)],
)
async def test_what_ends_a_connection_there_ends_it_here(
    cluster: Cluster, outcome: ForwardOutcome, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(agent: Any, request: Request) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer.set_result((outcome, b"why"))
        return answer

    monkeypatch.setattr(cluster._forwarding._links, "forward", forward)
    with pytest.raises(error, match="why"):
        await cluster.ask(_heartbeat("other"), 4)


async def test_a_malformed_request_is_refused_here(cluster: Cluster) -> None:
    request = a_request(12, 4, b"\xff\xff\xff\xff\xff")
    served: list[Request] = []

    async def local(request: Request) -> Response:
        served.append(request)
        return Response(None)

    assert (await cluster._forwarding.wrap(ROUTES[12], local)(request)).buffers is None
    assert served == [request]


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize(("group", "node_id"), COORDINATORS.items())
async def test_offsets_of_a_transaction_go_to_the_groups_coordinator(
    cluster: Cluster, version: int, group: str, node_id: int
) -> None:
    """Their first field is the transactional id."""
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    message = TxnOffsetCommitRequest(
        transactional_id="other",
        group_id=group,
        producer_id=1,
        producer_epoch=0,
        topics=[topic(name="t", partitions=[partition])],
    )
    answer = await cluster.ask(message, version)
    assert cluster.served == [(node_id, 28)]
    assert answer.topics[0].partitions[0].error_code == CODES[node_id]


def test_every_group_request_is_forwarded() -> None:
    assert OffsetCommitRequest.API_KEY in ROUTES
    assert {8, 9, 11, 12, 13, 14, 15, 16, 28, 42, 47, 68, 69} <= ROUTES.keys()
