"""The requests about the duties of agents: registration, heartbeat, reassigned partitions.

BrokerRegistration (key 62), BrokerHeartbeat (63), UnregisterBroker (64), AlterPartitionReassignments (45, versions
0-1), ListPartitionReassignments (46, version 0).

Place: request fields to the metastore or to PartitionChangeRecords in the metadata log, and the image back to
fields. The first three are for software that uses the controller's API: Headrace's agents call the metastore
directly (agent/cluster/membership.py); both use the same functions in Postgres. The active controller completes
reassignments in progress.
Invariant: only the active controller answers 62 and 63, all others return NOT_CONTROLLER, as in
Kafka. Any agent carries out 64, which Kafka's brokers forward; unregistering twice is NONE, as long as the id is
among the UNREGISTERED_MAX that went last.
A "replica" is a preferred agent: it leads while it is live, and no data is copied. Each reassigned partition gets a
separate result; the accepted ones of a request are appended together, decided on exactly the image that they follow.
Source: KIP-631 (the seed's keys 57-59 are Kafka's 62-64), KIP-858 and KIP-966 (later fields, not needed); KIP-455,
and metastore/log/reassignment.py for the rules of reassignments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest
from kio.schema.alter_partition_reassignments.v1.response import (
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from kio.schema.list_partition_reassignments.v0.response import OngoingPartitionReassignment, OngoingTopicReassignment
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest

from headrace.agent.cluster.log_change import LogChange, Verdict
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.config.bounds import NODE_ID_MAX
from headrace.metastore.api.agents import AgentRegistration, FeatureRange, Listener
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.log.image import Assignment, MetadataImage
from headrace.metastore.log.kip631_records import PartitionChangeRecord
from headrace.metastore.log.reassignment import cancel_reassignment, reassign, reassignments
from headrace.metastore.log.shown_counts import shown_count
from headrace.protocol.errors import error_code, membership_error, reassignment_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError


@dataclass(slots=True)
class _Wish:
    """One partition of the request and its result. `target` None cancels."""

    topic: str
    index: int
    target: tuple[int, ...] | None
    code: ErrorCode = ErrorCode.none
    message: str | None = None

    def answer(self, code: int, message: str | None) -> None:
        self.code, self.message = ErrorCode(code), message


class _Rules(NamedTuple):
    """`same_size`: the number of replicas must not change. `shows_virtual`: the client sees no agents."""

    same_size: bool
    shows_virtual: bool


class AlterPartitionReassignments:
    """The handler of key 45."""

    def __init__(self, change: LogChange, shared: SharedAddress | None) -> None:
        self._change, self._shared = change, shared

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, AlterPartitionReassignmentsRequest)
        wishes = [
            [_Wish(topic.name, p.partition_index, p.replicas) for p in topic.partitions] for topic in entity.topics
        ]
        same_size = not getattr(entity, "allow_replication_factor_change", True)
        deadline = request.received_at + entity.timeout.total_seconds()
        rules = _Rules(same_size, virtual_node(self._shared, request.connection.listener) is not None)
        code, message = await self._alter([wish for topic in wishes for wish in topic], rules, deadline)
        responses = tuple(
            schema.make(
                ReassignableTopicResponse,
                name=asked.name,
                partitions=tuple(
                    schema.make(
                        ReassignablePartitionResponse,
                        partition_index=wish.index,
                        error_code=wish.code,
                        error_message=wish.message,
                    )
                    for wish in topic
                ),
            )
            for asked, topic in zip(entity.topics, wishes, strict=True)
        )
        response = schema.response(
            allow_replication_factor_change=not same_size,
            error_code=code,
            error_message=message,
            responses=responses,
        )
        return reply(request, response)

    async def _alter(self, wishes: list[_Wish], rules: _Rules, deadline: float) -> Verdict:
        """The result of the request as a whole."""
        times = Counter((wish.topic, wish.index) for wish in wishes)
        if any(count > 1 for count in times.values()):
            return Verdict(ErrorCode.invalid_request, "duplicate partition")
        return await self._change.append(lambda image: _judge(image, wishes, rules), deadline)


class ListPartitionReassignments:
    """The handler of key 46."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, ListPartitionReassignmentsRequest)
        code, message, slices = ErrorCode.none, None, WorkSlices()
        found: dict[str, list[tuple[int, Assignment]]] = {}
        try:
            found = await _under_way(await self._cluster.catch_up(), entity.topics, slices)
        except HeadraceError as error:
            code, message = ErrorCode(error_code(error)), str(error)

        def shown(partition: tuple[int, Assignment]) -> OngoingPartitionReassignment:
            index, assignment = partition
            return schema.make(
                OngoingPartitionReassignment,
                partition_index=index,
                replicas=assignment.replicas,
                adding_replicas=assignment.adding,
                removing_replicas=assignment.removing,
            )

        topics = []
        for name, partitions in found.items():
            made = await slices.each(shown, partitions)
            topics.append(schema.make(OngoingTopicReassignment, name=name, partitions=made))
            await slices.did(ELEMENT_UNITS)
        response = schema.response(error_code=code, error_message=message, topics=tuple(topics))
        return reply(request, response)


def _judge(image: MetadataImage, wishes: Iterable[_Wish], rules: _Rules) -> list[PartitionChangeRecord]:
    """The records of accepted changes; refused ones get an error."""
    records = []
    for wish in wishes:
        wish.answer(ErrorCode.none, None)
        try:
            record = _change(image, wish, rules)
        except InvalidError as error:
            wish.answer(reassignment_error(error), str(error))
        else:
            shown = shown_count(image.topics_by_name[wish.topic], wish.index)
            if rules.same_size and wish.target is not None and len(wish.target) != shown:
                wish.answer(
                    ErrorCode.invalid_replication_factor, f"the number of replicas must not change from {shown}"
                )
            elif record is None:
                wish.answer(ErrorCode.no_reassignment_in_progress, "no reassignment is in progress")
            else:
                records.append(record)
    return records


def _change(image: MetadataImage, wish: _Wish, rules: _Rules) -> PartitionChangeRecord | None:
    topic = image.topics_by_name.get(wish.topic)
    if topic is None:
        raise NotFoundError(f"topic does not exist: {wish.topic}")
    if wish.target is None:
        return cancel_reassignment(image, topic.topic_id, wish.index)
    return reassign(image, topic.topic_id, wish.index, wish.target, shows_virtual=rules.shows_virtual)


async def _under_way(
    image: MetadataImage, asked: Iterable[ListPartitionReassignmentsTopics] | None, slices: WorkSlices
) -> dict[str, list[tuple[int, Assignment]]]:
    """Reassignments in progress by topic name; `asked` None means all."""
    wanted = None if asked is None else {(topic.name, index) for topic in asked for index in topic.partition_indexes}
    found: dict[str, list[tuple[int, Assignment]]] = {}
    for topic, index, assignment in reassignments(image):
        await slices.did(1)
        if wanted is None or (topic.name, index) in wanted:
            found.setdefault(topic.name, []).append((index, assignment))
    return found


IsActive = Callable[[], bool]
"""Whether this process is the active controller, by its own lease deadline."""


class BrokerRegistration:
    """Serves key 62, versions 0-4."""

    def __init__(self, api: ClusterApi, is_active: IsActive) -> None:
        self._api = api
        self._is_active = is_active

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, BrokerRegistrationRequest)
        code, broker_epoch = ErrorCode.none, -1
        try:
            if not self._is_active():
                code = ErrorCode.not_controller
            elif not 0 <= entity.broker_id <= NODE_ID_MAX or entity.incarnation_id is None or not entity.listeners:
                code = ErrorCode.invalid_request
            else:
                broker_epoch = (await self._api.register_agent(_registration(entity))).broker_epoch
        except HeadraceError as error:
            code = ErrorCode(membership_error(error))
        return reply(request, schema.response(error_code=code, broker_epoch=broker_epoch))


class BrokerHeartbeat:
    """The handler of key 63, versions 0-2. An agent has no log dirs: those that a request names do not matter."""

    def __init__(self, cluster: ClusterView, api: ClusterApi, in_force: SettingsInForce, is_active: IsActive) -> None:
        self._cluster = cluster
        self._api = api
        self._in_force = in_force
        self._is_active = is_active

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, BrokerHeartbeatRequest)
        code, caught_up, fenced, shut_down = ErrorCode.none, False, True, False
        try:
            if not self._is_active():
                code = ErrorCode.not_controller
            elif entity.broker_id not in (await self._cluster.catch_up()).agents:
                code = ErrorCode.broker_id_not_registered
            else:
                answer = await self._api.heartbeat(
                    entity.broker_id,
                    entity.broker_epoch,
                    metadata_offset=entity.current_metadata_offset,
                    want_fence=entity.want_fence,
                    want_shut_down=entity.want_shut_down,
                    session_timeout_ms=self._in_force.current().broker_session_timeout_ms,
                )
                caught_up, fenced, shut_down = answer.is_caught_up, answer.is_fenced, answer.should_shut_down
        except HeadraceError as error:
            code = ErrorCode(membership_error(error))
        response = schema.response(
            error_code=code,
            is_caught_up=caught_up,
            is_fenced=fenced,
            should_shut_down=shut_down,
        )
        return reply(request, response)


class UnregisterBroker:
    """The handler of key 64, version 0. With `may_act`, a standby controller's listener refuses."""

    def __init__(self, cluster: ClusterView, api: ClusterApi, may_act: IsActive = lambda: True) -> None:
        self._cluster = cluster
        self._api = api
        self._may_act = may_act

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, UnregisterBrokerRequest)
        code, message = ErrorCode.none, None
        if not self._may_act():
            answer = schema.response(
                error_code=ErrorCode.not_controller,
                error_message="this controller is a standby",
            )
            return reply(request, answer)
        try:
            image = await self._cluster.catch_up()
            agent = image.agents.get(entity.broker_id)
            if agent is not None:
                await self._api.unregister_agent(agent.node_id, agent.broker_epoch)
            elif entity.broker_id not in image.unregistered:
                code, message = ErrorCode.broker_id_not_registered, f"no broker {entity.broker_id} was ever registered"
        except HeadraceError as error:
            code, message = ErrorCode(membership_error(error)), str(error)
        return reply(request, schema.response(error_code=code, error_message=message))


def _registration(entity: Any) -> AgentRegistration:
    """The request as the metastore's value type."""
    listeners = tuple(
        Listener(listener.name, listener.host, listener.port, listener.security_protocol)
        for listener in entity.listeners
    )
    return AgentRegistration(
        node_id=entity.broker_id,
        incarnation_id=entity.incarnation_id,
        host=listeners[0].host,
        port=listeners[0].port,
        rack=entity.rack,
        cluster_id=entity.cluster_id,
        features={f.name: FeatureRange(f.min_supported_version, f.max_supported_version) for f in entity.features},
        listeners=listeners,
    )
