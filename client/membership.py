"""A member of a consumer group of KIP-848: heartbeats, its epoch, and the partitions that the group gives it.

Place: a task of consumer.py, which takes and gives back partitions in `getmany` and then calls `own`.
Invariant: the member tells the coordinator that it gave a partition back only after consumer.py did. A member that
was fenced owns nothing, and joins again after consumer.py dropped its partitions.
Source: KIP-848.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.cluster import ClientCluster
from headrace.client.messages import message
from headrace.protocol.api_keys import ApiKey
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError, UnavailableError

log = logging.getLogger(__name__)

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
_VERSION = 1
_FENCED = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)
_MOVED = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress)
_FIRST_INTERVAL_SECONDS = 1.0

IdPartition = tuple[uuid.UUID, int]


class MemberTerms(NamedTuple):
    """What a member tells its group when it joins."""

    group_id: str
    topics: tuple[str, ...]
    rebalance_timeout_ms: int
    assignor: str | None
    """The server's, uniform or range; None: its default."""


class ConsumerMembership:
    """`changed` is called when the target or the epoch is another one."""

    def __init__(
        self,
        cluster: ClientCluster,
        clock: Clock,
        rng: random.Random,
        terms: MemberTerms,
        changed: Callable[[], None],
    ) -> None:
        self.group_id = terms.group_id
        self.member_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        self.epoch = JOIN_EPOCH
        self.target: frozenset[IdPartition] = frozenset()
        self.is_fenced = False
        """Everything that it owned belongs to others, maybe."""
        self.failure: InvalidError | None = None
        """The group refuses the member; it heartbeats no more."""
        self._cluster, self._clock, self._topics, self._changed = cluster, clock, terms.topics, changed
        self._rebalance_timeout = datetime.timedelta(milliseconds=terms.rebalance_timeout_ms)
        self._assignor = terms.assignor
        self._node_id: int | None = None
        self._owned: frozenset[IdPartition] = frozenset()
        self._told: frozenset[IdPartition] | None = frozenset()
        """What the coordinator knows of `_owned`; None: tell it."""
        self._interval_seconds = _FIRST_INTERVAL_SECONDS
        self._wake = asyncio.Event()

    def own(self, partitions: frozenset[IdPartition]) -> None:
        """The member has exactly these."""
        if self.is_fenced:
            self.is_fenced, self.epoch = False, JOIN_EPOCH
        if partitions != self._owned:
            self._owned = partitions
            self._wake.set()

    def heartbeat_soon(self) -> None:
        """The group's topics may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Run until it is cancelled, or the group refuses the member."""
        while self.failure is None:
            self._wake.clear()
            if not self.is_fenced:
                pause = await self._heartbeat()
            waiting = asyncio.ensure_future(self._wake.wait())
            sleeping = asyncio.ensure_future(self._clock.sleep(pause))
            try:
                await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                sleeping.cancel()

    async def leave(self) -> None:
        """Partitions go to other members at once. Without an answer, they do when the session ends."""
        if self.epoch > JOIN_EPOCH:
            try:
                await self._send(LEAVE_EPOCH, {"topic_partitions": ()})
            except UnavailableError as error:
                log.info("group not left: group=%s error=%s", self.group_id, error)

    async def coordinator(self) -> int:
        """The node; UnavailableError while there is none."""
        if self._node_id is None:
            self._node_id = await self._cluster.coordinator(self.group_id)
        return self._node_id

    def lost_coordinator(self) -> None:
        """Look it up again."""
        self._node_id = None

    async def _heartbeat(self) -> float:
        """Seconds until the next one."""
        owned, is_joining = self._owned, self.epoch == JOIN_EPOCH
        fields: dict[str, Any] = {"topic_partitions": None}
        if is_joining:
            fields = {
                "topic_partitions": (),
                "subscribed_topic_names": self._topics,
                "server_assignor": self._assignor,
                "rebalance_timeout": self._rebalance_timeout,
            }
        elif owned != self._told:
            fields = {"topic_partitions": self._partitions(owned)}
        try:
            answer = await self._send(self.epoch, fields)
        except UnavailableError as error:
            log.info("heartbeat failed: group=%s error=%s", self.group_id, error)
            self._told = None
            return self._cluster.settings.retry_backoff_ms / 1000
        if answer.error_code is not ErrorCode.none:
            return self._refused(answer)
        self._told = frozenset() if is_joining else owned
        if answer.member_epoch != self.epoch or answer.assignment is not None:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.target = frozenset(
                    (each.topic_id, index) for each in answer.assignment.topic_partitions for index in each.partitions
                )
            self._changed()
        self._interval_seconds = answer.heartbeat_interval.total_seconds()
        return self._interval_seconds

    def _refused(self, answer: Any) -> float:
        if answer.error_code in _FENCED:
            log.info("member fenced: group=%s member=%s %s", self.group_id, self.member_id, answer.error_code.name)
            self.is_fenced, self.target, self._told = True, frozenset(), frozenset()
            self._changed()
        elif answer.error_code in _MOVED:
            self.lost_coordinator()
            self._told = None
        elif not answer.error_code.retriable:
            self.failure = InvalidError(f"refused by the group: {answer.error_code.name} {answer.error_message or ''}")
            self._changed()
        return self._cluster.settings.retry_backoff_ms / 1000

    async def _send(self, epoch: int, fields: Mapping[str, Any]) -> Any:
        api = message(ApiKey.CONSUMER_GROUP_HEARTBEAT, _VERSION)
        try:
            return await self._cluster.call(
                await self.coordinator(),
                api,
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=epoch,
                **fields,
            )
        except UnavailableError:
            self.lost_coordinator()
            raise

    def _partitions(self, owned: Collection[IdPartition]) -> tuple[Any, ...]:
        api = message(ApiKey.CONSUMER_GROUP_HEARTBEAT, _VERSION)
        by_id: dict[uuid.UUID, list[int]] = {}
        for topic_id, index in sorted(owned, key=lambda each: (each[0].int, each[1])):
            by_id.setdefault(topic_id, []).append(index)
        return tuple(
            api.make("TopicPartitions", topic_id=topic_id, partitions=tuple(found)) for topic_id, found in by_id.items()
        )
