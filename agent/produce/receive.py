"""A Produce request becomes batches for the buffer, each judged on its own.

Place: first step of the write path, called for one request of a connection at a time, so that
batches reach the buffer in the order in which the client sent them.
Invariant: a request is judged against one metadata image; a name, id or partition that the image
lacks is unknown only after catching up with the log's head. A refused batch never touches its
neighbours.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.cluster.view import ClusterView
from headrace.agent.listener.client_turns import ClientTurns, client_of
from headrace.agent.produce.last_stored import origin_of
from headrace.agent.produce.refused_sequences import Numbered, Place, RefusedSequences
from headrace.agent.produce.requests import Arrival, PendingRequest, Refusal, deadline_of
from headrace.agent.produce.validate import (
    NO_TRANSACTIONS,
    Accepted,
    LoopWork,
    ProducerNames,
    RuleBook,
    TopicRules,
    judge,
    judge_records,
    judge_transactional,
    judge_unread,
    transaction_of,
    with_moved_keys,
)
from headrace.metastore.api.commit import NO_ALIAS, MovedKeys
from headrace.metastore.keys import partition_key
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.errors import SENT_AGAIN
from headrace.protocol.internal_topics import INTERNAL_TOPICS
from headrace.protocol.partition_counts import NO_COUNT
from headrace.protocol.produce_codec import FIRST_BY_ID, ProducePartitionReply, ProduceRequest
from headrace.protocol.request import Request
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError
from headrace.storage.records.header import HEADER_BYTES, read_header

log = logging.getLogger(__name__)

ACKS = (-1, 0, 1)
READ_ONLY = Refusal(int(ErrorCode.invalid_topic_exception), "the topic can be read only")
INTERNAL = Refusal(int(ErrorCode.invalid_topic_exception), "the topic is internal to Kafka")
NO_SUCH_TOPIC = Refusal(int(ErrorCode.unknown_topic_or_partition), "no such topic or partition")
DENIED = Refusal(int(ErrorCode.topic_authorization_failed), "Topic authorization failed.")
DENIED_TRANSACTION = Refusal(
    int(ErrorCode.transactional_id_authorization_failed), "Transactional Id authorization failed."
)
NO_SUCH_ID = Refusal(int(ErrorCode.unknown_topic_id), "no such topic or partition")

_WRITE, _TOPIC = AclOperation.WRITE, AclResource.TOPIC
Topics = list[TopicImage | None]
"""Topics of a request, in its order; None where the image has no such topic."""


NewPending = Callable[[Request, ProduceRequest], PendingRequest]
"""Makes the answer of a request."""


def refusal_of(produce: ProduceRequest) -> Refusal | None:
    """Return why the request as a whole is refused, if it is."""
    if produce.acks not in ACKS:
        return Refusal(int(ErrorCode.invalid_required_acks), f"acks must be -1, 0 or 1: acks={produce.acks}")
    return None


class Received(NamedTuple):
    """A request after all its batches were judged. `arrivals` are the ones that passed."""

    pending: PendingRequest
    arrivals: list[Arrival]
    image_offset: int
    unread: frozenset[int] = frozenset()
    """Indexes of the arrivals with records that `Receiver.read_records` still has to check."""
    low_latency: bool = False
    """Whether all batches that passed are of topics with low.latency.enable."""


class Receiver:
    """Knows the cluster; keeps of a request only notes of refused batches. `on_refused` learns of all of them."""

    def __init__(
        self,
        view: ClusterView,
        clock: Clock,
        rules: RuleBook,
        refused: RefusedSequences,
        *,
        on_refused: Callable[[Refusal], None],
        names: ProducerNames,
        authorizer: Authorizer | None,
        new_pending: NewPending | None,
    ) -> None:
        """`authorizer`: None if ACLs are not enforced. `new_pending`: makes a request's answer; None: as usual."""
        self._pending = new_pending or self._new_pending
        self._names = names
        self._authorizer = authorizer
        self._view = view
        self._clock = clock
        self._rules = rules
        self._refused = refused
        self._on_refused = on_refused
        self._reading = ClientTurns()

    def refuse(self, request: Request, produce: ProduceRequest, refusal: Refusal) -> PendingRequest:
        """The answer to a request that is refused as a whole."""
        pending = self._pending(request, produce)
        pending.refuse(produce, refusal)
        return pending

    def refusal_of_transaction(self, request: Request, transactional_id: str) -> Refusal | None:
        """Return why the client may not use the transactional id of its request, if it may not."""
        authorizer = self._authorizer
        if authorizer is not None and not authorizer.require(
            request, _WRITE, AclResource.TRANSACTIONAL_ID, transactional_id
        ):
            return DENIED_TRANSACTION
        return None if self._view.image.transaction_version else NO_TRANSACTIONS

    def receive(self, request: Request, produce: ProduceRequest) -> Received | None:
        """Judge every batch of a request that `refusal_of` let pass. Answered at once when none of them does.

        None, and nothing has happened, when that has to wait for something: see `receive_later`.
        """
        image = self._view.image
        topics = _find_all(image, produce)
        if not _has_all(topics, produce) or self._to_open(image, topics) or _moving(topics):
            return None
        if produce.transactional_id is not None and not self._names.has_all(produce):
            return None
        return self._judge(request, produce, image, topics)

    async def receive_later(self, request: Request, produce: ProduceRequest) -> Received:
        """The same as `receive`: catches up with the log for what the image lacks, and opens records where rules
        need it.
        """
        image, missing = await self._look_up(produce, by_id=request.api_version >= FIRST_BY_ID)
        topics = _find_all(image, produce)
        received = self._judge(request, produce, image, topics, missing)
        if produce.transactional_id is not None:
            received = await self._check_producers(received, produce.transactional_id)
        if received.unread:
            received = await self.read_records(request, received)
        if moving := _moving(topics):
            received = await self._find_moved_keys(request, received, image, moving)
        to_open = self._to_open(image, topics)
        if not to_open:
            return received
        arrivals, now_ms = [], self._clock.wall_ms()
        for arrival in received.arrivals:
            rules = to_open.get(arrival.topic_id)
            refusal = None
            if rules is not None:
                async with self._reading.turn(client_of(request)):
                    refusal = await judge_records(arrival.data, rules, now_ms)
            if refusal is None:
                arrivals.append(arrival)
            else:
                self._refuse_arrival(refusal, arrival)
        return received._replace(arrivals=arrivals)

    async def _check_producers(self, received: Received, transactional_id: str) -> Received:
        """Refuse transactional batches if a producer of the request does not have this transactional id."""
        producers = {arrival.header.producer_id for arrival in received.arrivals if arrival.transaction}
        refusal = await self._names.look_up(transactional_id, producers)
        if refusal is None:
            return received
        unread, kept = received.unread, []
        for index, arrival in enumerate(received.arrivals):
            if arrival.transaction:
                self._refuse_arrival(refusal, arrival)
            else:
                kept.append(index)
        return received._replace(
            arrivals=[received.arrivals[index] for index in kept],
            unread=frozenset(place for place, index in enumerate(kept) if index in unread),
        )

    async def read_records(self, request: Request, received: Received) -> Received:
        """Check the records that were too many for the event loop, and refuse batches for them."""
        arrivals = []
        for index, arrival in enumerate(received.arrivals):
            refusal = None
            if index in received.unread:
                async with self._reading.turn(client_of(request)):
                    refusal = await asyncio.to_thread(judge_unread, arrival.data, arrival.header)
            if refusal is None:
                arrivals.append(arrival)
            else:
                self._refuse_arrival(refusal, arrival)
        return received._replace(arrivals=arrivals, unread=frozenset())

    async def _find_moved_keys(
        self, request: Request, received: Received, image: MetadataImage, moving: dict[uuid.UUID, TopicImage]
    ) -> Received:
        """Say of each batch for a partition that is or was split in two whether it has a key of the child."""
        arrivals = []
        for arrival in received.arrivals:
            topic = moving.get(arrival.topic_id)
            child = None if topic is None else topic.moving_child(arrival.partition_index)
            found: Arrival | Refusal = arrival
            if topic is not None and child is not None and _keys_may_move(arrival):
                async with self._reading.turn(client_of(request)):
                    found = await with_moved_keys(arrival, self._rules.rules(image, topic).partitioner, child)
            if isinstance(found, Refusal):
                self._refuse_arrival(found, arrival)
            else:
                arrivals.append(found)
        return received._replace(arrivals=arrivals)

    def _judge(
        self,
        request: Request,
        produce: ProduceRequest,
        image: MetadataImage,
        topics: Topics,
        missing: Refusal = NO_SUCH_TOPIC,
    ) -> Received:
        """`topics` are those of `produce` that the image has; `missing` answers for what it lacks."""
        pending = self._pending(request, produce)
        pending.origin = origin_of(request.connection)
        version, now_ms = request.api_version, self._clock.wall_ms()
        arrivals, unread, records, low_latency = list[Arrival](), list[int](), 0, True
        work = LoopWork()
        access = None if self._authorizer is None else self._authorizer.access(request.connection)
        transactional = partial(
            judge_transactional, transactional_id=produce.transactional_id, is_offered=image.transaction_version > 0
        )
        for topic, wanted, replies in zip(topics, produce.topics, pending.reply.topics, strict=True):
            # a topic with an unknown id is unknown to all clients
            name = wanted.name if topic is None else topic.name
            is_denied = (
                access is not None
                and name is not None
                and not access.allows(_WRITE, _TOPIC, name)
                and self._denied(request, name)
            )
            for partition, reply in zip(wanted.partitions, replies.partitions, strict=True):
                if is_denied:
                    self._refuse(DENIED, pending, reply)
                    continue
                if topic is None or not topic.has(partition.index):
                    reference = wanted.topic_id or wanted.name or ""
                    refusal = _why_missing(reference) or missing
                    self._refuse(refusal, pending, reply)
                    self._note(refusal, partition.records, (reference, partition.index))
                    continue
                rules = self._rules.rules(image, topic)
                verdict = judge(partition.records, rules, version, now_ms, work, transactional)
                if isinstance(verdict, Accepted):
                    if not verdict.is_read:
                        unread.append(len(arrivals))
                    records += verdict.header.record_count
                    low_latency &= rules.low_latency
                    arrivals.append(
                        _arrival(request, topic, verdict, pending, reply, wanted.partition_count, rules.max_bytes)
                    )
                else:
                    self._refuse(verdict, pending, reply)
                    self._note(verdict, partition.records, (topic.topic_number, partition.index))
        request.sender.sent_records(records)
        return Received(pending, arrivals, image.offset, frozenset(unread), low_latency)

    def _denied(self, request: Request, name: str) -> bool:
        """Report that the client may not write the topic."""
        assert self._authorizer is not None
        self._authorizer.denied(request, _WRITE, _TOPIC, name)
        return True

    def _new_pending(self, request: Request, produce: ProduceRequest) -> PendingRequest:
        return PendingRequest(
            produce,
            correlation_id=request.correlation_id,
            version=request.api_version,
            appended_at=self._clock.monotonic(),
            deadline=deadline_of(request, produce),
        )

    def _refuse(self, refusal: Refusal, pending: PendingRequest, reply: ProducePartitionReply) -> None:
        self._on_refused(refusal)
        refusal.write_to(reply)
        pending.judged()

    def _refuse_arrival(self, refusal: Refusal, arrival: Arrival) -> None:
        self._refuse(refusal, arrival.request, arrival.reply)
        if refusal.code in SENT_AGAIN and (numbered := arrival.numbered) is not None:
            self._refused.note(numbered, self._clock.monotonic())

    def _note(self, refusal: Refusal, records: memoryview | None, place: Place) -> None:
        """Remember a batch that its client sends again, if it has a producer id."""
        if refusal.code not in SENT_AGAIN or records is None or len(records) < HEADER_BYTES:
            return
        header = read_header(records)
        if header.producer_id >= 0:
            numbered = Numbered(header.producer_id, header.producer_epoch, header.base_sequence, place)
            self._refused.note(numbered, self._clock.monotonic())

    def _to_open(self, image: MetadataImage, topics: Topics) -> dict[uuid.UUID, TopicRules]:
        """The rules of the topics with records that must be opened, by topic id."""
        return {
            topic.topic_id: rules
            for topic in topics
            if topic and (rules := self._rules.rules(image, topic)).opens_records
        }

    async def _look_up(self, produce: ProduceRequest, *, by_id: bool) -> tuple[MetadataImage, Refusal]:
        """The image to judge against, and the answer for batches of partitions that it lacks."""
        image = self._view.image
        missing = NO_SUCH_ID if by_id else NO_SUCH_TOPIC
        if _has_all(_find_all(image, produce), produce):
            return image, missing
        try:
            return await self._view.catch_up(), missing
        except HeadraceError as error:
            log.warning("produce to an unknown topic while the log's head is out of reach: error=%s", error)
            # Every client retries it after asking for metadata again; "unknown" is only said for certain.
            return image, Refusal(int(ErrorCode.leader_not_available), f"cannot look the topic up now: {error}")


def _find_all(image: MetadataImage, produce: ProduceRequest) -> Topics:
    return [
        image.topics_by_name.get(topic.name or "") if topic.topic_id is None else image.topics_by_id.get(topic.topic_id)
        for topic in produce.topics
    ]


def _moving(topics: Topics) -> dict[uuid.UUID, TopicImage]:
    """Those with partitions that a doubling split in two, or that halve, by id."""
    return {topic.topic_id: topic for topic in topics if topic is not None and (topic.splits or topic.halving >= 0)}


def _has_all(topics: Topics, produce: ProduceRequest) -> bool:
    """Return whether the topics are known, and all the partitions that are asked for."""
    for topic, wanted in zip(topics, produce.topics, strict=True):
        if topic is None:
            return False
        for partition in wanted.partitions:  # a loop, for it runs once per batch
            if not topic.has(partition.index):
                return False
    return True


def _keys_may_move(arrival: Arrival) -> bool:
    """Return whether neither the client's count nor an alias says to which partition the batch's keys belong."""
    return arrival.partition_count == NO_COUNT and arrival.alias == NO_ALIAS


def _arrival(
    request: Request,
    topic: TopicImage,
    accepted: Accepted,
    pending: PendingRequest,
    reply: ProducePartitionReply,
    partition_count: int,
    max_bytes: int,
) -> Arrival:
    """A batch for an alias goes to its parent; a client that sends counts places the records again instead."""
    data, header, _ = accepted
    index, alias = reply.index, NO_ALIAS
    if partition_count == NO_COUNT and index in topic.aliases:
        index, alias = topic.aliases[index], index
    return Arrival(
        topic.topic_id,
        index,
        partition_key(topic.topic_number, index),
        topic.leader_epochs[index],
        header.producer_id if header.producer_id >= 0 else ~request.connection.connection_id,
        data,
        header,
        pending,
        reply,
        partition_count,
        transaction_of(header, request.api_version),
        MovedKeys.UNKNOWN,
        alias,
        max_bytes,
    )


def _why_missing(name_or_id: str | uuid.UUID | None) -> Refusal | None:
    """The refusal of a topic that no client can write; None for one that the cluster just does not have."""
    if rendered_topic(name_or_id) is not None:
        return READ_ONLY
    return INTERNAL if name_or_id in INTERNAL_TOPICS else None
