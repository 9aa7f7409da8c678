"""Steps of the active controller that complete what clients began: changes of partition counts, transactions.

Place: rows of controller.py's table. The rules of partitions are metastore/partitions/ (changes.py, splitting.py,
merging.py); requests begin what is done here (agent/topics), retention and DeleteRecords empty the marked
partitions. TransactionEnds aborts late transactions and forgets unused transactional ids; its metrics come from the
look for late ones.
Invariant: each action on partitions is planned from the newest image or from what the store says, is one transaction
and is carried out at the image's offset; a controller that takes over at any point continues by looking again. The
store checks what order depends on once more: that a partition is empty, that no moved key has come, that groups have
committed a child's end, that times have passed. If no controller is there, pauses of halvings end by themselves.
An end of a transaction changes only the version that was seen late, so neither a second controller nor the
producer's own EndTxn is in its way: one of them ends it. An id with an open transaction is never forgotten. A
transaction that cannot be ended holds up no other: it is asked for again in each look, after the others.
Source: Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms and transactional.id.expiration.ms.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.agent.cluster.follower import MetadataFollower
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.retention import OldestQuery
from headrace.metastore.api.topics import HalvingPair, HalvingState, RemovalOutcome
from headrace.metastore.api.transactions import LateTransaction, OpenTransactions, TransactionApi
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.partitions.changes import removals, shown_count
from headrace.metastore.partitions.merging import MergePhase, next_phase
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError, RetryableError

logger = logging.getLogger(__name__)

PER_ROUND = 100
"""A call ends one transaction: the others wait for the next round, so that the controller's other work continues."""
FORGOTTEN_PER_CALL = 1_000
UNREACHABLE_MAX = 2
"""Calls without an answer in one look, after which it ends; the row of such a transaction may change all the time."""
FAILING_MAX = 10_000
"""Transactional ids that cannot be ended and are asked for besides; Postgres lists the oldest first."""


class EndingTimes(NamedTuple):
    """The times that end transactions, in ms, as they are set now."""

    late_interval_ms: int
    expired_interval_ms: int
    expiration_ms: int

    @classmethod
    def of(cls, settings: Settings) -> EndingTimes:
        """Read the settings of these names."""
        return cls(
            settings.transaction_timed_out_interval_ms,
            settings.transaction_expired_interval_ms,
            settings.transactional_id_expiration_ms,
        )


class TransactionEnds:
    """One per candidate."""

    def __init__(self, api: TransactionApi, times: Callable[[], EndingTimes], registry: CollectorRegistry) -> None:
        self._api, self._times = api, times
        self._failing: set[str] = set()
        """Transactional ids with a late transaction that could not be ended in the last look."""
        self._open = Gauge(
            "headrace_transactions_open", "Open transactions, on the active controller", registry=registry
        )
        self._oldest = Gauge(
            "headrace_transactions_oldest_seconds",
            "How long the oldest open transaction is open, on the active controller; 0 without one",
            registry=registry,
        )
        self._late = Gauge(
            "headrace_transactions_late",
            "Transactions past their timeout that are not aborted yet, on the active controller",
            registry=registry,
        )
        self._timed_out = Counter(
            "headrace_transactions_timed_out_total",
            "Transactions that this controller aborted because of their timeout",
            registry=registry,
        )
        self._failed = Gauge(
            "headrace_transactions_unending",
            "Late transactions that cannot be aborted, on the active controller: its log says why",
            registry=registry,
        )

    def stand_by(self) -> None:
        """Show nothing."""
        self._show(OpenTransactions())

    def late_pause(self) -> float:
        """Return the seconds between two looks for late ones."""
        return self._times().late_interval_ms / 1000

    def unused_pause(self) -> float:
        """Return the seconds between two looks for unused ids."""
        return self._times().expired_interval_ms / 1000

    async def forget_unused(self, *_: object) -> bool:
        """Forget transactional ids. True: there may be more."""
        forgotten = await self._api.expire_transactional_ids(self._times().expiration_ms, FORGOTTEN_PER_CALL)
        if forgotten:
            logger.info("transactional ids forgotten: ids=%d", forgotten)
        return forgotten == FORGOTTEN_PER_CALL

    async def end_late(self, *_: object) -> bool:
        """Abort late transactions, and show what is open. True: there are more."""
        most = PER_ROUND + len(self._failing)
        found = await self._api.open_transactions(most)
        self._show(found)
        unreachable = 0
        left = sorted(found.late, key=lambda late: late.transactional_id in self._failing)
        self._failing &= {each.transactional_id for each in left}
        for each in left:
            try:
                await self._end(each)
                self._failing.discard(each.transactional_id)
            except HeadraceError as error:
                self._fails(each.transactional_id, error)
                unreachable += isinstance(error, (RetryableError, OutcomeUnknownError))
                if unreachable == UNREACHABLE_MAX or isinstance(error, FencedError):
                    raise
        self._failed.set(len(self._failing))
        self._late.set(found.late_count - len(found.late) + len(self._failing))
        return len(found.late) == most

    def _fails(self, transactional_id: str, error: HeadraceError) -> None:
        logger.error("late transaction not aborted: transactional_id=%s error=%s", transactional_id, error)
        if len(self._failing) < FAILING_MAX:
            self._failing.add(transactional_id)

    async def _end(self, late: LateTransaction) -> None:
        if await self._api.time_out_transaction(late):
            self._timed_out.inc()
            logger.warning("transaction timed out: transactional_id=%s", late.transactional_id)

    def _show(self, found: OpenTransactions) -> None:
        self._open.set(found.open)
        self._oldest.set(found.oldest_ms / 1000)
        self._late.set(found.late_count)
        if not found.late_count:
            self._failed.set(0)


PARTITIONS_PER_LOOK = 500
ROWS_PER_CALL = 5_000
"""Rows of each kind that a partition has left, removed in one transaction."""
SPLITS_PER_LOOK = 500


class HalvingSteps(NamedTuple):
    """What is due at one time; the first three are of pairs."""

    pause: Sequence[HalvingPair] = ()
    resume: Sequence[HalvingPair] = ()
    merge: Sequence[HalvingPair] = ()
    shows: bool = False
    settles: bool = False


def due_steps(state: HalvingState) -> HalvingSteps:
    """Judge by the rule of merging.py. Pairs go their own ways until the lower count is shown, for all of them."""
    times, now_ms = state.times, state.now_ms
    if state.shown_ms is not None:
        return HalvingSteps(settles=now_ms - state.shown_ms >= times.settle_after_ms)
    due: dict[MergePhase, list[HalvingPair]] = {phase: [] for phase in MergePhase}
    for pair in state.pairs:
        phase = next_phase(pair.phase, pair.lag, now_ms - pair.since_ms, times)
        if phase is not pair.phase:
            due[phase].append(pair)
    shows = all(
        pair.phase is MergePhase.MERGED and now_ms - pair.since_ms >= times.show_after_ms for pair in state.pairs
    )
    return HalvingSteps(due[MergePhase.PAUSED], due[MergePhase.DRAINING], due[MergePhase.MERGED], shows)


class PartitionSteps:
    """What the steps do; one per candidate. What the store refuses is planned again at the next look."""

    def __init__(self, api: Metastore, follower: MetadataFollower) -> None:
        self._api, self._follower = api, follower

    async def remove_empty(self, epoch: int, _: MetadataImage, topic_ids: Sequence[uuid.UUID]) -> None:
        """Remove the marked partitions that are empty."""
        for topic_id in topic_ids:
            await self._remove_of(epoch, topic_id)

    async def set_boundaries(self, epoch: int, image: MetadataImage, _: Sequence[uuid.UUID]) -> None:
        """Set those that are due; from its boundary on, a parent gets no key that moved."""
        for split in await self._api.topics.quiet_splits(SPLITS_PER_LOOK):
            if not await self._api.topics.set_split_boundary(epoch, image.offset, split):
                return
            parent = split_partition_key(split.parent_key)[1]
            logger.info(
                "boundary set: topic_id=%s partition=%d offset=%d", split.topic_id, parent, split.high_watermark
            )
            image = await self._follower.catch_up()

    async def halve(self, epoch: int, _: MetadataImage, topic_ids: Sequence[uuid.UUID]) -> None:
        """Take what is due of each halving, from the request until it is settled."""
        for topic_id in topic_ids:
            state = await self._api.topics.halving_state(topic_id)
            if state is not None:
                await self._take(epoch, topic_id, due_steps(state))

    async def _remove_of(self, epoch: int, topic_id: uuid.UUID) -> None:
        """All of a topic, one after the other, until one cannot go."""
        image = self._follower.image
        topic = image.topics_by_id.get(topic_id)
        empty = frozenset[int]() if topic is None else await self._empty(topic)
        for removal in () if topic is None else removals(topic.ordered_partitions, empty):
            outcome = RemovalOutcome.UNFINISHED
            while outcome is RemovalOutcome.UNFINISHED:
                outcome = await self._api.topics.remove_partition(
                    epoch, image.offset, topic_id, removal, limit=ROWS_PER_CALL
                )
            if outcome is not RemovalOutcome.REMOVED:
                return
            logger.info("partition removed: topic_id=%s partition=%d", topic_id, removal.partition)
            image = await self._follower.catch_up()

    async def _empty(self, topic: TopicImage) -> frozenset[int]:
        """The marked partitions without records."""
        by_key = {key: index for index in topic.marked if (key := topic.key(index)) is not None}
        keys, found = list(by_key), set[int]()
        for first in range(0, len(keys), PARTITIONS_PER_LOOK):
            queries = [OldestQuery(key, 1) for key in keys[first : first + PARTITIONS_PER_LOOK]]
            _, logs = await self._api.retention.oldest_extents(queries)
            found |= {
                by_key[log.partition_key]
                for log in logs
                if log.known and log.log_start_offset == log.high_watermark and not log.has_leftovers
            }
        return frozenset(found)

    async def _take(self, epoch: int, topic_id: uuid.UUID, due: HalvingSteps) -> None:
        if due.resume:
            resumed = await self._api.topics.resume_children(epoch, [pair.child_key for pair in due.resume])
            behind = sorted({group for pair in due.resume for group in pair.behind})
            logger.warning("pause undone: topic_id=%s children=%d groups_behind=%s", topic_id, resumed, behind)
        if due.pause:
            paused = await self._api.topics.pause_children(epoch, [pair.child_key for pair in due.pause])
            logger.info("children paused: topic_id=%s children=%d", topic_id, paused)
        if due.merge:
            head = self._follower.image.offset
            merged = await self._api.topics.merge_children(epoch, head, topic_id, due.merge)
            await self._log(f"children merged: children={len(due.merge)}", topic_id, is_done=merged)
        image = self._follower.image
        topic = image.topics_by_id.get(topic_id)
        if due.shows and topic is not None:
            before = topic.ordered_partitions
            change = shown_count(before)
            shown = await self._api.topics.show_halved_count(epoch, image.offset, topic_id, before.initial, change)
            await self._log("lower partition count shown", topic_id, is_done=shown)
        if due.settles:
            settled = await self._api.topics.settle_halving(epoch, self._follower.image.offset, topic_id)
            await self._log("halving settled", topic_id, is_done=settled)

    async def _log(self, event: str, topic_id: uuid.UUID, *, is_done: bool) -> None:
        if is_done:
            logger.info("%s: topic_id=%s", event, topic_id)
            await self._follower.catch_up()
