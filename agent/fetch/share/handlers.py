"""ShareFetch (78, versions 1-2) and ShareAcknowledge (79, versions 1-2).

Place: between the listener and the owner of the group, which is asked once per request; then the read path.
Invariant: a client gets records only of topics that it may read by the ACLs of the image at the time of the answer, and
none of which the lock has ended by then: another member may have them. What the owner gave and cannot be sent is given
back at once; if that is lost, it is free when its lock expires. If it is not known what the owner did, the answer says
so: the client asks again, and gets the records of this turn later.
Source: Kafka's message schemas, KIP-932, KIP-1206 (acquire modes), KIP-1222 (renew).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import NamedTuple, Protocol

import msgspec
from kio.schema.errors import ErrorCode
from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest
from kio.schema.share_fetch.v2.request import ShareFetchRequest

from headrace.agent.cluster.partition_names import RequestedPartition, Resolved, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.handler import ReplyClaim
from headrace.agent.fetch.sessions import AllowedTopics
from headrace.agent.fetch.share.deliver import AcquiredRange, ShareDelivery, ShareReader, acknowledged, fetched, refused
from headrace.agent.fetch.share.sessions import ShareExchange, ShareRef, ShareSessions
from headrace.agent.peers.share_turns import PartitionAsk, PartitionTurn, Returned, ShareTurn, TurnAnswer
from headrace.protocol.request import ClientConnection, Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.clock import Clock

NOT_KNOWN = ErrorCode.not_leader_or_follower
"""What a client gets when the owner's answer is lost: it looks for the leader, and asks again."""
_NO_ID = uuid.UUID(int=0)
_BATCH_OPTIMIZED, _RECORD_LIMIT = 0, 1
_ACQUIRE_MODES = (_BATCH_OPTIMIZED, _RECORD_LIMIT)
HOLE_TURNS = 100
"""How many turns one request takes to pass offsets that have no record."""
_RENEW = 4
_ShareRequest = ShareFetchRequest | ShareAcknowledgeRequest
_Acks = dict[ShareRef, list[tuple[int, int, bytes]]]


class AskOwner(Protocol):
    """Asks the agent that holds the group."""

    def __call__(self, turn: ShareTurn, client: ClientConnection, received_at: float) -> Awaitable[TurnAnswer | None]:
        """None: it is not known what became of the turn."""


class _Reading(NamedTuple):
    """A request, and where its records may be put."""

    request: Request
    turn: ShareTurn
    max_bytes: int
    memory: ReplyClaim
    resolved: Mapping[ShareRef, Resolved]


class ShareHandlers:
    """Serves both APIs for the clients of one agent."""

    def __init__(
        self,
        view: ClusterView,
        sessions: ShareSessions,
        reader: ShareReader,
        ask: AskOwner,
        clock: Clock,
        allowed: AllowedTopics | None,
        on_sent: Callable[[str | None, int], None] = lambda zone, size_bytes: None,
    ) -> None:
        """`allowed`: None if ACLs are not enforced. `on_sent`: see FetchHandler."""
        self._view, self._sessions, self._reader, self._ask, self._clock = view, sessions, reader, ask, clock
        self._allowed, self._on_sent = allowed, on_sent
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def sessions_bytes(self) -> int:
        """The memory of all sessions, about."""
        return self._sessions.in_use_bytes

    async def fetch(self, request: Request) -> Response:
        """API key 78."""
        schema, entity = decode(request, ShareFetchRequest)
        if refusal := self._refusal(entity) or _why_no_renewal(entity):
            return refused(request, schema, *refusal)
        acks = _acks(entity)
        asked = [
            (topic.topic_id or _NO_ID, each.partition_index) for topic in entity.topics for each in topic.partitions
        ]
        forgotten = [
            (topic.topic_id or _NO_ID, index) for topic in entity.forgotten_topics_data for index in topic.partitions
        ]
        exchange = self._sessions.fetch(
            request.connection, _key(entity), entity.share_session_epoch, asked, forgotten, acknowledges=bool(acks)
        )
        if exchange.error:
            return refused(request, schema, exchange.error, exchange.message)
        renews = getattr(entity, "is_renew_ack", False)
        turn = ShareTurn(
            *_key(entity),
            max_records=0 if renews else max(entity.max_records, 0),
            max_wait_ms=max(int(entity.max_wait.total_seconds() * 1000), 0),
            takes_batches=getattr(entity, "share_acquire_mode", _BATCH_OPTIMIZED) == _BATCH_OPTIMIZED,
        )
        memory = ReplyClaim(request.connection.replies)
        try:
            answer, parts = await self._serve(request, turn, exchange, acks, entity.max_bytes, memory)
        except BaseException:
            memory.give_up()
            raise
        if isinstance(answer, ErrorCode):
            memory.give_up()
            return refused(request, schema, answer)
        response = reply(request, fetched(schema, answer, parts, acks))
        response.reserved_bytes = memory.size_bytes
        return response

    async def acknowledge(self, request: Request) -> Response:
        """API key 79."""
        schema, entity = decode(request, ShareAcknowledgeRequest)
        if refusal := self._refusal(entity):
            return refused(request, schema, *refusal)
        acks = _acks(entity)
        exchange = self._sessions.acknowledge(request.connection, _key(entity), entity.share_session_epoch)
        if exchange.error:
            return refused(request, schema, exchange.error, exchange.message)
        turn = ShareTurn(*_key(entity))
        wanted = exchange._replace(wanted=exchange.wanted if exchange.closes else ())
        answer, parts = await self._serve(request, turn, wanted, acks, 0, ReplyClaim(request.connection.replies))
        if isinstance(answer, ErrorCode):
            return refused(request, schema, answer)
        return reply(request, acknowledged(schema, answer, parts, acks))

    # -- one turn

    def _refusal(self, entity: _ShareRequest) -> tuple[ErrorCode, str | None] | None:
        """Return why the request is refused in itself."""
        if not self._view.image.share_version:
            return ErrorCode.unsupported_version, None
        if not entity.group_id or not entity.member_id or "\0" in entity.group_id + entity.member_id:
            return ErrorCode.invalid_request, "a group id and a member id are needed"
        if (mode := getattr(entity, "share_acquire_mode", 0)) not in _ACQUIRE_MODES:
            return ErrorCode.invalid_request, f"unknown acquire mode: {mode}"
        return None

    async def _serve(
        self,
        request: Request,
        turn: ShareTurn,
        exchange: ShareExchange,
        acks: _Acks,
        max_bytes: int,
        memory: ReplyClaim,
    ) -> tuple[TurnAnswer | ErrorCode, dict[ShareRef, tuple[PartitionTurn, ShareDelivery]]]:
        """Return the owner's answer, and each partition's part of ours."""
        refs = list(dict.fromkeys((*exchange.wanted, *acks)))
        resolved = dict(zip(refs, await self._resolve(request, refs), strict=True))
        faults = {ref: _fault(batches, may_renew=_may_renew(request)) for ref, batches in acks.items()}
        wanted = frozenset(exchange.wanted)
        asks = {
            ref: PartitionAsk(each.key, acks.get(ref, []) if not faults.get(ref) else [], ref in wanted)
            for ref, each in resolved.items()
            if not each.error and not (faults.get(ref) and ref not in wanted)
        }
        answer: TurnAnswer | None = TurnAnswer()
        asked_at = self._clock.monotonic()
        if asks or exchange.closes:
            whole = _with(turn, list(asks.values()), closes=exchange.closes)
            heard = await self._ask(whole, request.connection, request.received_at)
            answer = heard if asks else answer  # a session that asked for nothing ends in any case
        if answer is not None and answer.error:
            if answer.error != NOT_KNOWN:
                return ErrorCode(answer.error), {}
            answer = None
        turns = {} if answer is None else {each.key: each for each in answer.partitions}
        deliveries: dict[int, ShareDelivery] = {}
        if answer is not None:
            reading = _Reading(request, turn, max_bytes, memory, resolved)
            deliveries = await self._read(reading, answer, asked_at)
            later, deliveries = await self._pass_holes(reading, answer, deliveries, asks.values(), asked_at)
            turns |= {
                each.key: msgspec.structs.replace(each, ack_error=turns[each.key].ack_error)
                for each in later.partitions
            }
        parts: dict[ShareRef, tuple[PartitionTurn, ShareDelivery]] = {}
        for ref, each in resolved.items():
            if each.error:
                parts[ref] = PartitionTurn(-1, each.error, each.error), ShareDelivery(each.error)
                continue
            found = turns.get(each.key) or PartitionTurn(
                each.key, *((NOT_KNOWN, NOT_KNOWN) if answer is None else (0, 0))
            )
            if faults.get(ref):
                found = PartitionTurn(each.key, found.error, ErrorCode.invalid_request)
            parts[ref] = found, deliveries.get(each.key, ShareDelivery(found.error))
        return answer or TurnAnswer(), parts

    async def _resolve(self, request: Request, refs: list[ShareRef]) -> list[Resolved]:
        resolved = await resolve(self._view, [RequestedPartition(topic, index, -1) for topic, index in refs])
        codes = {} if self._allowed is None else self._allowed.codes(request, (topic for topic, _ in refs))
        return [_judged(each, codes.get(ref[0], ErrorCode.none)) for ref, each in zip(refs, resolved, strict=True)]

    async def _read(self, reading: _Reading, answer: TurnAnswer, asked_at: float) -> dict[int, ShareDelivery]:
        """Read what was acquired, and return what is delivered and what is given back, by partition key: everything is
        given back if reading took longer than the lock, and a topic that the client may not read (any more).
        """
        turns = {each.key: each for each in answer.partitions if each.acquired}
        if not turns:
            return {}
        all_returned = {key: _returned(key, turn.acquired) for key, turn in turns.items()}
        try:
            deliveries = await self._reader.read(
                {key: turn.acquired for key, turn in turns.items()},
                reading.max_bytes,
                reading.memory,
                committed=answer.read_committed,
                needed_ends={key: turn.needed_end for key, turn in turns.items()},
            )
        except BaseException:
            self._return(reading, answer, list(chain.from_iterable(all_returned.values())))
            raise
        if self._clock.monotonic() >= asked_at + (answer.waited_ms + answer.lock_ms) / 1000:
            deliveries = {key: ShareDelivery(returned=returned) for key, returned in all_returned.items()}
        if self._allowed is not None:
            codes = self._allowed.codes(reading.request, (topic for topic, _ in reading.resolved))
            topics = {resolved.key: topic for (topic, _), resolved in reading.resolved.items()}
            for key, delivery in deliveries.items():
                if code := codes.get(topics[key], ErrorCode.none):
                    returned = [*delivery.returned, *_returned(key, delivery.acquired)]
                    deliveries[key] = ShareDelivery(code, returned=returned)
        return deliveries

    async def _pass_holes(
        self,
        reading: _Reading,
        answer: TurnAnswer,
        deliveries: dict[int, ShareDelivery],
        asks: Iterable[PartitionAsk],
        asked_at: float,
    ) -> tuple[TurnAnswer, dict[int, ShareDelivery]]:
        """Take further turns as long as there is nothing to send and offsets without a record were passed. Return the
        last answer of the owner and what can be sent, and give back the rest.
        """
        wanted = [PartitionAsk(each.key, [], True) for each in asks if each.wants]
        for _ in range(HOLE_TURNS):
            returned = [each for one in deliveries.values() for each in one.returned]
            waited_ms = int((self._clock.monotonic() - asked_at) * 1000)
            is_empty = not any(one.acquired or one.error for one in deliveries.values())
            if not (is_empty and any(each.is_done for each in returned) and waited_ms < reading.turn.max_wait_ms):
                break
            turn = msgspec.structs.replace(
                reading.turn,
                partitions=wanted,
                max_wait_ms=reading.turn.max_wait_ms - waited_ms,
                returned=returned,
                claim=answer.claim,
            )
            reading.memory.give_up()
            asked_at_again, deliveries = self._clock.monotonic(), {}
            heard = await self._ask(turn, reading.request.connection, reading.request.received_at)
            if heard is None or heard.error:
                break
            answer = heard
            deliveries = await self._read(reading, answer, asked_at_again)
        self._return(reading, answer, [each for one in deliveries.values() for each in one.returned])
        self._on_sent(None, sum(len(buffer) for one in deliveries.values() for buffer in one.records))
        return answer, deliveries

    def _return(self, reading: _Reading, answer: TurnAnswer, returned: list[Returned]) -> None:
        """Tell the owner what was not sent, without waiting for it."""
        if returned:
            turn, request = reading.turn, reading.request
            back = ShareTurn(turn.group_id, turn.member_id, returned=returned, claim=answer.claim)
            task = asyncio.create_task(self._tell(back, request.connection, request.received_at))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _tell(self, turn: ShareTurn, client: ClientConnection, received_at: float) -> None:
        await self._ask(turn, client, received_at)


def _judged(resolved: Resolved, code: int) -> Resolved:
    """Return the partition, or the topic's code: a denial even for a partition that does not exist, so that the answer
    does not say how many a hidden topic has.
    """
    if code == ErrorCode.topic_authorization_failed or (code and not resolved.error):
        return Resolved(-1, code)
    return resolved


def _key(entity: _ShareRequest) -> tuple[str, str]:
    """Return group and member; `_refusal` has found that both are there."""
    return entity.group_id or "", entity.member_id or ""


def _with(turn: ShareTurn, partitions: list[PartitionAsk], *, closes: bool) -> ShareTurn:
    return msgspec.structs.replace(turn, partitions=partitions, closes=closes)


def _why_no_renewal(entity: ShareFetchRequest) -> tuple[ErrorCode, str] | None:
    """Return why a fetch that renews is refused: it reads nothing, and has to say so."""
    limits = (entity.max_records, entity.max_bytes, entity.min_bytes, entity.max_wait)
    if getattr(entity, "is_renew_ack", False) and any(limits):
        return ErrorCode.invalid_request, "a fetch that renews must have 0 as MaxRecords, MaxBytes, MinBytes, MaxWaitMs"
    return None


def _may_renew(request: Request) -> bool:
    return bool(getattr(request.entity, "is_renew_ack", False))


def _acks(entity: _ShareRequest) -> _Acks:
    """Return the acknowledgements of a request; a partition that is named twice has those of both."""
    found: _Acks = {}
    for topic in entity.topics:
        for each in topic.partitions:
            for batch in each.acknowledgement_batches:
                types = bytes(kind & 0xFF for kind in batch.acknowledge_types)
                ref = (topic.topic_id or _NO_ID, each.partition_index)
                found.setdefault(ref, []).append((batch.first_offset, batch.last_offset, types))
    return found


def _returned(key: int, acquired: Iterable[AcquiredRange]) -> list[Returned]:
    """Return what gives these records of a partition back to the owner."""
    return [Returned(key, first, last) for first, last, _ in acquired]


def _fault(batches: Iterable[tuple[int, int, bytes]], *, may_renew: bool) -> bool:
    """Return whether something is wrong with the acknowledgements of one partition in themselves."""
    before, most = -1, _RENEW if may_renew else _RENEW - 1
    for first, last, types in batches:
        if first < 0 or last < first or first <= before:
            return True
        before = last
        if len(types) not in (1, last - first + 1) or any(kind > most for kind in types):
            return True
    return False
