"""A Produce request becomes batches for the buffer, each judged on its own.

Place: first step of the write path, called with the connection's `produce_order` held, so that
batches reach the buffer in the order in which the client sent them.
Invariant: a request is judged against one metadata image; a name, id or partition that the image
lacks is unknown only after catching up with the log's head. A refused batch never touches its
neighbours. If the process dies here nothing was stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from agent.cluster.metadata_topic import is_metadata_topic
from agent.cluster.view import ClusterView
from agent.listener.request import Request
from agent.produce.pending import PendingRequest, Refusal
from agent.produce.staged_file import Arrival
from agent.produce.validate import NO_TRANSACTIONS, Accepted, RuleBook, judge, keyed
from agent.protocol.produce_codec import FIRST_BY_ID, ProducePartitionReply, ProduceRequest, ProduceTopic
from metastore.keys import partition_key
from metastore.log.image import MetadataImage, TopicImage
from storage.clock import Clock
from storage.errors import HeadraceError

log = logging.getLogger(__name__)

ACKS = (-1, 0, 1)
_READ_ONLY = Refusal(int(ErrorCode.invalid_topic_exception), "the metadata log can be read only")


def refusal_of(produce: ProduceRequest) -> Refusal | None:
    """Why the request as a whole is refused, if it is."""
    if produce.acks not in ACKS:
        return Refusal(int(ErrorCode.invalid_required_acks), f"acks must be -1, 0 or 1: acks={produce.acks}")
    return NO_TRANSACTIONS if produce.transactional_id is not None else None


class Received(NamedTuple):
    """A request whose batches were all judged. `arrivals` are the ones that passed."""

    pending: PendingRequest
    arrivals: list[Arrival]
    image_offset: int


class Receiver:
    """Knows the cluster; keeps nothing of a request. `on_refused` hears of every batch that did not pass."""

    def __init__(
        self, view: ClusterView, clock: Clock, rules: RuleBook, *, on_refused: Callable[[Refusal], None]
    ) -> None:
        self._view = view
        self._clock = clock
        self._rules = rules
        self._on_refused = on_refused

    async def receive(self, request: Request, produce: ProduceRequest) -> Received:
        """Judge every batch of a request that `refusal_of` let pass. Answered at once when none of them does."""
        by_id = request.api_version >= FIRST_BY_ID
        image, missing = await self._image_for(produce, by_id=by_id)
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        deadline = request.received_at + max(produce.timeout_ms, 0) / 1000
        pending = PendingRequest(produce, by_id=by_id, appended_at=now, deadline=deadline)
        arrivals: list[Arrival] = []
        for topic, replies in zip(produce.topics, pending.reply.topics, strict=True):
            found = _find(image, topic)
            for partition, reply in zip(topic.partitions, replies.partitions, strict=True):
                if found is None or not 0 <= partition.index < len(found.leader_epochs):
                    refusal = _READ_ONLY if is_metadata_topic(topic.topic_id or topic.name) else missing
                else:
                    rules = self._rules.rules(image, found)
                    verdict = judge(partition.records, rules, request.api_version, now_ms)
                    if rules.needs_keys and isinstance(verdict, Accepted):
                        verdict = await keyed(verdict)
                    if isinstance(verdict, Accepted):
                        arrivals.append(_arrival(request, found, verdict, pending, reply))
                        continue
                    refusal = verdict
                self._on_refused(refusal)
                refusal.write_to(reply)
                pending.judged()
        return Received(pending, arrivals, image.offset)

    async def _image_for(self, produce: ProduceRequest, *, by_id: bool) -> tuple[MetadataImage, Refusal]:
        """The image to judge against, and what answers the batches whose partition it lacks."""
        image = self._view.image
        code = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        missing = Refusal(int(code), "no such topic or partition")
        if _has_all(image, produce.topics):
            return image, missing
        try:
            return await self._view.catch_up(), missing
        except HeadraceError as error:
            log.warning("produce to an unknown topic while the log's head is out of reach: error=%s", error)
            # Every client retries it after asking for metadata again; "unknown" is only said for certain.
            return image, Refusal(int(ErrorCode.leader_not_available), f"cannot look the topic up now: {error}")


def _find(image: MetadataImage, topic: ProduceTopic) -> TopicImage | None:
    if topic.topic_id is not None:
        return image.topics_by_id.get(topic.topic_id)
    return image.topics_by_name.get(topic.name or "")


def _has_all(image: MetadataImage, topics: list[ProduceTopic]) -> bool:
    """Whether the image knows the topics and all the partitions that are asked for."""
    for topic in topics:
        found = _find(image, topic)
        if found is None:
            return False
        count = len(found.leader_epochs)
        for partition in topic.partitions:  # a loop, for it runs once per batch
            if not 0 <= partition.index < count:
                return False
    return True


def _arrival(
    request: Request, topic: TopicImage, accepted: Accepted, pending: PendingRequest, reply: ProducePartitionReply
) -> Arrival:
    data, header = accepted
    index = reply.index
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
    )
