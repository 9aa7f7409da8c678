"""AlterPartitionReassignments (key 45, versions 0-1) and ListPartitionReassignments (46, version 0).

Place: request fields to PartitionChangeRecords in the metadata log, and the image back to fields. The active
controller completes reassignments in progress.
Invariant: a "replica" is a preferred agent: it leads while it is live, and no data is copied. Each partition
gets a separate result; the accepted ones of a request are appended together, decided on exactly the
image that they follow.
Source: KIP-455; metastore/log/reassignment.py for the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest
from kio.schema.alter_partition_reassignments.v1.response import (
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from kio.schema.list_partition_reassignments.v0.response import OngoingPartitionReassignment, OngoingTopicReassignment

from headrace.agent.cluster.log_change import LogChange, Verdict
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.metastore.log.image import Assignment, MetadataImage
from headrace.metastore.log.kip631_records import PartitionChangeRecord
from headrace.metastore.log.reassignment import cancel_reassignment, reassign, reassignments
from headrace.metastore.log.shown_counts import shown_count
from headrace.protocol.errors import error_code, reassignment_error
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
