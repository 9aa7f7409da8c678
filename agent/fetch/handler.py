"""The Fetch handler: a request in, a long poll, a reply.

Place: between the listener and the read path plan -> locate -> read -> assemble. AwaitedLog gives a fetch the
extents that are there, or those that come while it waits; ReplyClaim is the memory that it reserves before it reads.
Invariant: the reply is sent when there is enough data, on an error, at the client's timeout or when the agent
drains; never later. An error of one partition does not affect others. A waiting fetch sends no queries: it looks at
the index when the feed brought something. What this agent has acknowledged is in the answer, or its high watermark
shows that there is more. What was reserved continues with the response, or is given back.
Source: KIP-74 (limits), KIP-227 (sessions), KIP-392 (zones), KIP-516 (topic ids), KIP-98 (read_committed).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.partition_names import RequestedPartition, TopicRef, resolve, unknown_topic
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import zone_of
from headrace.agent.fetch.deliver import Delivery, DeliveryOutcome, available_bytes, largest_first, largest_reply
from headrace.agent.fetch.files.walk import Batches
from headrace.agent.fetch.index.feed import FeedFollower
from headrace.agent.fetch.index.index import LOOK_AGAIN
from headrace.agent.fetch.index.own_commits import AcknowledgedEnds
from headrace.agent.fetch.index.tail import Lookup, LookupStatus, known_part, stable_part
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.rendered_topics import RenderedTopic, RenderedTopics
from headrace.agent.fetch.sessions import AllowedTopics, FetchSessions, Ref
from headrace.agent.fetch.waiters import Waiters
from headrace.metastore.api.read import ExtentQuery
from headrace.protocol.errors import READ_FAILED, read_error
from headrace.protocol.fetch_codec import (
    FIRST_BY_ID,
    AbortedTransaction,
    FetchPartition,
    FetchPartitionReply,
    FetchReply,
    FetchRequest,
    FetchTopicReply,
    decode_fetch,
    encode_fetch_response,
)
from headrace.protocol.request import ReplyReservations, Request, Response
from headrace.storage.clock import Clock
from headrace.storage.errors import DamagedError


class AwaitedLog:
    """The logs of one agent, for fetches."""

    def __init__(
        self, locator: Locator, waiters: Waiters, acknowledged: AcknowledgedEnds, feed: FeedFollower, clock: Clock
    ) -> None:
        self._locator, self._waiters, self._acknowledged, self._feed = locator, waiters, acknowledged, feed
        self._clock = clock
        self.is_draining = False
        """Whether no fetch waits any more."""

    def drain(self) -> None:
        """Answer every waiting fetch with the available data; from now on no fetch waits."""
        self.is_draining = True
        self._waiters.notify_all(LOOK_AGAIN)

    def following(self, keys: Iterable[int]) -> AbstractContextManager[None]:
        """Follow the feed of these partitions: enter it while a fetch wants what comes next in them."""
        return self._feed.following(keys)

    async def extents(
        self, queries: Sequence[ExtentQuery], min_bytes: int, max_bytes: int, deadline: float, *, committed: bool
    ) -> list[Lookup]:
        """The extents, when there are `min_bytes` of them, or an error, or at the timeout."""
        keys = [query.partition_key for query in queries]
        self._feed.read(keys)
        lookups = await self._locate(queries, max_bytes, committed=committed)
        has_enough = self._missing(queries, lookups, min_bytes, deadline) <= 0
        if has_enough and not any(map(_is_at_end, lookups)):
            return lookups
        with self._feed.following(keys):
            if not has_enough:
                return await self._wait(queries, min_bytes, max_bytes, deadline, committed=committed)
            if min_bytes > 0 and self._clock.monotonic() < deadline:
                return lookups  # other partitions have enough: the next fetch sees these
            return await self._locate_acknowledged(queries, max_bytes, committed=committed)

    async def _wait(
        self, queries: Sequence[ExtentQuery], min_bytes: int, max_bytes: int, deadline: float, *, committed: bool
    ) -> list[Lookup]:
        with self._waiters.watch([query.partition_key for query in queries]) as waiter:
            while True:
                waiter.reset()
                lookups = await self._locate(queries, max_bytes, committed=committed)
                missing = self._missing(queries, lookups, min_bytes, deadline)
                if missing <= 0:
                    return lookups
                await waiter.wait(missing, self._clock, deadline - self._clock.monotonic())

    async def _locate_acknowledged(
        self, queries: Sequence[ExtentQuery], max_bytes: int, *, committed: bool
    ) -> list[Lookup]:
        """Return at least what any agent had acknowledged before: for a fetch that does not wait."""
        await self._feed.catch_up()
        return await self._locate(queries, max_bytes, committed=committed)

    async def _locate(self, queries: Sequence[ExtentQuery], max_bytes: int, *, committed: bool) -> list[Lookup]:
        """Return what the index or the primary has: no less than what this agent had acknowledged before."""
        marks = self._acknowledged.marks(queries)  # a poll may end them while the look-up waits for the primary
        found = await self._locator.locate(queries, max_bytes)
        if marks is not None:
            if any(map(partial(self._acknowledged.is_missing, marks), queries, found)):
                await self._feed.catch_up()
                found = await self._locator.locate(queries, max_bytes)
            found = list(map(partial(self._acknowledged.raised, marks), queries, found))
        return list(map(stable_part, queries, found)) if committed else found

    def _missing(
        self, queries: Sequence[ExtentQuery], lookups: Sequence[Lookup], min_bytes: int, deadline: float
    ) -> int:
        """Number of bytes that must still arrive to end the wait; 0 if there is nothing to wait for."""
        if self.is_draining or self._clock.monotonic() >= deadline:
            return 0
        missing = min_bytes
        for query, lookup in zip(queries, lookups, strict=True):
            if lookup.status is not LookupStatus.FOUND or lookup.cut:
                return 0
            missing -= available_bytes(query, lookup)
        return missing


def _is_at_end(lookup: Lookup) -> bool:
    """Return whether there is nothing to read yet."""
    return lookup.status is LookupStatus.FOUND and not lookup.extents and not lookup.cut


class ReplyClaim:
    """The memory that one request's reply has reserved."""

    def __init__(self, replies: ReplyReservations) -> None:
        self._replies = replies
        self.size_bytes = 0
        """Reserved so far."""

    async def claim(self, size: int, first: int, max_bytes: int) -> int:
        """Wait until `size` bytes are reserved, or fewer if the client cannot have them. Return how many bytes of
        records may be read, of `max_bytes`, besides a first batch, which has `first` bytes at most.
        """
        if not size and not first:
            return max_bytes
        reserved, granted = await self._replies.reserve(size, first)
        self.size_bytes += reserved
        return max_bytes if granted >= size else granted

    def give_up(self) -> None:
        """There is no response."""
        self._replies.release(self.size_bytes)
        self.size_bytes = 0


READ_COMMITTED = 1
METADATA_POLL_SECONDS = 0.05
DAMAGE_PAUSE_SECONDS = 0.1
"""How long an answer without records waits if a partition is damaged where it is read: aiokafka asks again at once."""

Answer = tuple[Ref, FetchPartitionReply]


@dataclass(frozen=True, slots=True)
class FetchClients:
    """What an agent allows to those who fetch, and counts of them."""

    max_bytes: int
    """Limits every response, regardless of its request."""
    allowed: AllowedTopics | None
    """The topics that a client may read; None if ACLs are not enforced."""
    is_shared: Callable[[str], bool]
    """Whether clients of this listener see all agents as one."""
    on_sent: Callable[[str | None, int], None]
    """Called with (the client's zone if it sent one, record bytes) for each response."""


class FetchHandler:
    """Serves API key 1."""

    def __init__(
        self,
        view: ClusterView,
        sessions: FetchSessions,
        log: AwaitedLog,
        delivery: Delivery,
        rendered: RenderedTopics,
        clients: FetchClients,
        clock: Clock,
    ) -> None:
        self._view = view
        self._sessions = sessions
        self._log = log
        self._delivery = delivery
        self._rendered = rendered
        self._clients = clients
        self._clock = clock

    async def handle(self, request: Request) -> Response:
        """Any version from 4 to 18. InvalidError for a body that is not a Fetch request."""
        version = request.api_version
        fetch = decode_fetch(request.body, version, request.connection.request_elements_max)
        exchange = self._sessions.open(
            fetch,
            request.connection,
            by_id=version >= FIRST_BY_ID,
            session_max=request.connection.request_elements_max,
        )
        if exchange.error:
            reply = FetchReply([], error_code=exchange.error)
        else:
            zone = fetch.rack_id or zone_of(request.client_id)
            deadline = request.received_at + fetch.max_wait_ms / 1000
            memory = ReplyClaim(request.connection.replies)
            try:
                if fetch.rack_id and self._clients.is_shared(request.connection.listener):
                    fetch.rack_id = ""  # another agent cannot be named
                allowed = self._clients.allowed
                if allowed is None:
                    replies = await self._serve_all(fetch, exchange.wanted, zone, deadline, memory)
                else:
                    replies = await self._serve_allowed(
                        allowed, request, fetch, exchange.wanted, zone, deadline, memory
                    )
            except BaseException:
                memory.give_up()
                raise
            reply = FetchReply(_by_topic(exchange.narrow(replies)), session_id=exchange.session_id)
            return Response(encode_fetch_response(request.correlation_id, version, reply), memory.size_bytes)
        return Response(encode_fetch_response(request.correlation_id, version, reply))

    async def _serve_allowed(
        self,
        allowed: AllowedTopics,
        request: Request,
        fetch: FetchRequest,
        wanted: Mapping[Ref, FetchPartition],
        zone: str | None,
        deadline: float,
        memory: ReplyClaim,
    ) -> list[Answer]:
        """The same as `_serve_all`, for a client that may read some topics only."""
        image, access = self._view.image, allowed.access(request)
        readable, refused = allowed.split(request, wanted)
        if not readable:
            return refused
        replies = await self._serve_all(fetch, readable, zone, deadline, memory)
        if self._view.image is not image and (
            allowed.access(request) is not access or request.api_version >= FIRST_BY_ID
        ):
            replies = allowed.checked(request, replies)
        return replies + refused

    async def _serve_all(
        self,
        fetch: FetchRequest,
        wanted: Mapping[Ref, FetchPartition],
        zone: str | None,
        deadline: float,
        memory: ReplyClaim,
    ) -> list[Answer]:
        """The same as `_serve`; rendered topics wait only if no other topic is requested."""
        special = {ref: topic for ref in wanted if (topic := self._rendered.find(ref[0])) is not None}
        if not special:
            return await self._serve(fetch, wanted, zone, deadline, memory)
        stored = {ref: partition for ref, partition in wanted.items() if ref not in special}
        if not stored and fetch.min_bytes > 0:
            await self._wait_for_rendered([(topic, wanted[ref]) for ref, topic in special.items()], deadline)
        rendered = [(ref, await topic.fetch(wanted[ref])) for ref, topic in special.items()]
        if not stored:
            return rendered
        patience = (
            self._clock.monotonic() if any(reply.records or reply.error_code for _, reply in rendered) else deadline
        )
        return rendered + await self._serve(fetch, stored, zone, patience, memory)

    async def _serve(
        self,
        fetch: FetchRequest,
        wanted: Mapping[Ref, FetchPartition],
        zone: str | None,
        deadline: float,
        memory: ReplyClaim,
    ) -> list[Answer]:
        """One reply per requested partition, in order. `deadline` on the clock's monotonic time."""
        requested = [
            RequestedPartition(*ref, partition.current_leader_epoch, partition.partition_count)
            for ref, partition in wanted.items()
        ]
        resolved = await resolve(self._view, requested)
        elsewhere = [-1 if answer.error else self._elsewhere(fetch.rack_id, answer.key) for answer in resolved]
        asked = [
            (answer.key, partition)
            for answer, partition, node_id in zip(resolved, wanted.values(), elsewhere, strict=True)
            if not answer.error and node_id < 0
        ]
        queries = [ExtentQuery(key, partition.fetch_offset, partition.max_bytes) for key, partition in asked]
        max_bytes = min(fetch.max_bytes, self._clients.max_bytes)
        worth_waiting = bool(queries) and len(queries) == len(resolved)
        min_bytes = min(fetch.min_bytes, max_bytes) if worth_waiting else 0
        committed = fetch.isolation_level == READ_COMMITTED
        found = await self._log.extents(queries, min_bytes, max_bytes, deadline, committed=committed)
        epochs = [partition.current_leader_epoch for _, partition in asked]  # one may have risen during the wait
        lookups = list(map(known_part, found, epochs))
        max_bytes = await memory.claim(
            largest_reply(queries, lookups, max_bytes), largest_first(queries, lookups), max_bytes
        )
        outcomes = await self._delivery.deliver(queries, lookups, max_bytes, epochs, committed=committed)
        if _has_only_damage(outcomes):
            await self._clock.sleep(max(0.0, min(DAMAGE_PAUSE_SECONDS, deadline - self._clock.monotonic())))
        sizes = [batches.size_bytes for _, batches in outcomes if isinstance(batches, Batches)]
        self._clients.on_sent(zone, sum(sizes))
        delivered = iter(outcomes)
        return [
            (
                ref,
                FetchPartitionReply(ref[1], answer.error, preferred_read_replica=node_id)
                if answer.error or node_id >= 0
                else _reply(ref, *next(delivered), committed=committed),
            )
            for ref, answer, node_id in zip(wanted, resolved, elsewhere, strict=True)
        ]

    def _elsewhere(self, rack_id: str, partition_key: int) -> int:
        """The agent in the consumer's zone that it should read from; -1 if that is this agent, or is no better
        (KIP-392).
        """
        own = self._view.image.agents.get(self._view.node_id)
        if not rack_id or own is None or own.rack == rack_id:
            return -1
        better = self._view.leader(partition_key, rack_id)
        return better.node_id if better is not None and better.rack == rack_id else -1

    async def _wait_for_rendered(
        self, partitions: Collection[tuple[RenderedTopic, FetchPartition]], deadline: float
    ) -> None:
        """Wait until one of them has records, or until the timeout."""
        if await _have_news(partitions):
            return
        with self._log.following(()) if any(topic.follows_feed for topic, _ in partitions) else nullcontext():
            while not self._log.is_draining and (left := deadline - self._clock.monotonic()) > 0:
                await self._clock.sleep(min(left, METADATA_POLL_SECONDS))
                if await _have_news(partitions):
                    return


async def _have_news(partitions: Collection[tuple[RenderedTopic, FetchPartition]]) -> bool:
    return any([await topic.has_news(partition) for topic, partition in partitions])


def _reply(ref: Ref, lookup: Lookup, outcome: DeliveryOutcome, *, committed: bool) -> FetchPartitionReply:
    topic, index = ref
    if lookup.status is LookupStatus.GONE:
        return FetchPartitionReply(index, unknown_topic(topic))
    if lookup.status is LookupStatus.UNAVAILABLE:
        return FetchPartitionReply(index, READ_FAILED)
    if lookup.status is LookupStatus.FENCED:
        return FetchPartitionReply(index, ErrorCode.fenced_leader_epoch)
    reply = FetchPartitionReply(
        index,
        high_watermark=lookup.high_watermark,
        last_stable_offset=lookup.last_stable_offset,
        log_start_offset=lookup.log_start_offset,
        aborted_transactions=[AbortedTransaction(a.producer_id, a.first_offset) for a in lookup.aborted]
        if committed
        else None,
    )
    if lookup.status is LookupStatus.OUT_OF_RANGE:
        reply.error_code = ErrorCode.offset_out_of_range
    elif isinstance(outcome, Batches):
        reply.records = outcome.buffers
    else:
        reply.error_code = read_error(outcome)
    return reply


def _has_only_damage(outcomes: Sequence[tuple[Lookup, DeliveryOutcome]]) -> bool:
    """Return whether nothing is delivered, and damage is a reason."""
    is_damaged = any(isinstance(outcome, DamagedError) for _, outcome in outcomes)
    return is_damaged and not any(isinstance(outcome, Batches) and outcome.size_bytes for _, outcome in outcomes)


def _by_topic(answers: Sequence[Answer]) -> list[FetchTopicReply]:
    """Replies grouped by topic, with names or ids as in the request."""
    topics: dict[TopicRef, FetchTopicReply] = {}
    for (topic, _), reply in answers:
        found = topics.get(topic)
        if found is None:
            found = FetchTopicReply(topic, None, []) if isinstance(topic, str) else FetchTopicReply(None, topic, [])
            topics[topic] = found
        found.partitions.append(reply)
    return list(topics.values())
