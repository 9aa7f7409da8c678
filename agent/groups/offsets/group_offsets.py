"""Committed offsets of groups: stored under the coordinator's epoch, read from the metastore.

Place: between the handlers of OffsetCommit and OffsetFetch and the metastore's GroupApi.
Invariant: an offset is stored only for a member that the group knows, by the group's holder; commits
of one group are stored in order, and a fetch shows every commit that came here before it. A commit with an unknown
outcome may still be on its way to the server, and must not be stored after a later one: the group is released, so that
the next commit comes under the epoch of another claim, which fences it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.groups.claims import Held
from headrace.agent.groups.coordinated import FIRST_COMMIT_WITH_MEMBER_EPOCH, CoordinatedGroup
from headrace.agent.groups.group_values import MemberRef
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.groups.offsets.judged_offsets import StoredOffsets
from headrace.agent.limits.client_rows import COMMITTED_OFFSETS, RowLimits
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.transactions import ProducerEpoch
from headrace.protocol.errors import coordinator_error, transaction_error
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError

logger = logging.getLogger(__name__)


class PendingCommit(NamedTuple):
    """The transaction for which offsets are committed. `adds_group`: they make the group a part of it."""

    transactional_id: str
    producer: ProducerEpoch
    adds_group: bool
    knows_abortable: bool


class GroupOffsets:
    """All groups' committed offsets. Every answer carries a code."""

    def __init__(
        self,
        api: Metastore,
        groups: HeldGroups,
        clock: Clock,
        metrics: GroupMetrics,
        rows: RowLimits | None,
    ) -> None:
        """`rows`: limits on what is stored; None: there are none."""
        self._api = api
        self._rows = rows
        self._groups = groups
        self._clock = clock
        self._metrics = metrics

    async def commit(
        self, group_id: str, member: MemberRef, offsets: Sequence[CommittedOffset], *, version: int
    ) -> StoredOffsets | ErrorCode:
        """Return what became of each offset; a code when none was stored."""
        kept = await self._with_room(group_id, offsets)
        if isinstance(kept, ErrorCode):
            return kept
        stored = await self._store(
            group_id,
            lambda held: held.group.check_commit(self._clock.monotonic(), member, version, _keys(offsets)),
            lambda held: self._commit(group_id, held.epoch, kept),
        )
        return _of_all(offsets, kept, stored)

    async def commit_pending(
        self, group_id: str, member: MemberRef, offsets: Sequence[CommittedOffset], pending: PendingCommit
    ) -> StoredOffsets | ErrorCode:
        """The same as `commit`, for offsets that the transaction commits when it ends."""
        kept = await self._with_room(group_id, offsets)
        if isinstance(kept, ErrorCode):
            return kept
        stored = await self._store(
            group_id,
            lambda held: _check_pending(held.group, self._clock.monotonic(), member, _keys(offsets)),
            lambda held: self._add_pending(group_id, held.epoch, kept, pending),
        )
        return _of_all(offsets, kept, stored)

    async def _store(
        self,
        group_id: str,
        check: Callable[[Held], ErrorCode],
        store: Callable[[Held], Awaitable[list[bool] | ErrorCode]],
    ) -> list[bool] | ErrorCode:
        """Store offsets in turn with the group's other commits."""
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return held
        async with held.commits:
            code = self._groups.lost(held)
            if code is ErrorCode.none:
                code = check(held)
            if code is not ErrorCode.none:
                self._metrics.commit_refused.inc()
                return code
            try:
                stored = await store(held)
            except FencedError:
                self._metrics.commit_failed.inc()
                self._groups.drop(held)
                return ErrorCode.not_coordinator
            except HeadraceError as error:
                self._metrics.commit_failed.inc()
                logger.warning("offset commit failed: group=%s error=%s", group_id, error)
                if isinstance(error, OutcomeUnknownError):
                    self._groups.drop(held)
                return ErrorCode(coordinator_error(error))
        if isinstance(stored, ErrorCode):
            self._metrics.commit_refused.inc()
        elif stored:
            self._metrics.committed.inc()
            self._metrics.committed_partitions.inc(sum(stored))
        return stored

    async def _commit(self, group_id: str, epoch: int, offsets: Sequence[CommittedOffset]) -> list[bool]:
        return await self._api.groups.commit_offsets(group_id, epoch, offsets) if offsets else []

    async def _add_pending(
        self, group_id: str, epoch: int, offsets: Sequence[CommittedOffset], pending: PendingCommit
    ) -> list[bool] | ErrorCode:
        verdict, stored = await self._api.transactions.add_pending_offsets(
            pending.transactional_id, pending.producer, group_id, epoch, offsets, adds_group=pending.adds_group
        )
        code = transaction_error(verdict, knows_fenced=False, knows_abortable=pending.knows_abortable)
        return ErrorCode(code) if code else stored

    async def _with_room(
        self, group_id: str, offsets: Sequence[CommittedOffset]
    ) -> Sequence[CommittedOffset] | ErrorCode:
        """Those that may be stored: all, unless the cluster has its most offsets; then those of partitions in which the
        group has one already. Asked before the group judges the member: between that and the commit nothing waits."""
        if self._rows is None or not offsets or await self._rows.has_room(COMMITTED_OFFSETS, len(offsets)):
            return offsets
        try:
            stored = await self._api.groups.fetch_offsets(
                group_id, sorted({offset.partition_key for offset in offsets})
            )
        except HeadraceError as error:
            logger.warning("offsets not looked up: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        kept = _of_same_partitions(offsets, stored)
        if len(kept) < len(offsets):
            self._rows.refused(COMMITTED_OFFSETS)
        return kept

    async def fetch(
        self, group_id: str, partition_keys: Sequence[int] | None, member: MemberRef | None = None
    ) -> list[CommittedOffset] | ErrorCode:
        """Committed offsets, all when `partition_keys` is None. `member`: who asks, where it says so (version 9 on)."""
        code = self._groups.refusal(group_id)
        if code is not ErrorCode.none:
            return code
        held = self._groups.get(group_id)
        if member is not None:
            found = await self._groups.find(group_id)
            if isinstance(found, ErrorCode):
                return found
            held = found
            if (code := held.group.check_fetch(member)) is not ErrorCode.none:
                return code
        try:
            if held is None:
                return await self._api.groups.fetch_offsets(group_id, partition_keys)
            async with held.commits:
                return await self._api.groups.fetch_offsets(group_id, partition_keys)
        except HeadraceError as error:
            logger.warning("offset fetch failed: group=%s error=%s", group_id, error)
            return ErrorCode.coordinator_load_in_progress  # the one that consumers of any age ask again for


def _of_same_partitions(
    offsets: Sequence[CommittedOffset], stored: Sequence[CommittedOffset]
) -> Sequence[CommittedOffset]:
    """Return the offsets of partitions in which the group has a stored one."""
    known = {offset.partition_key for offset in stored}
    return [offset for offset in offsets if offset.partition_key in known]


def _of_all(
    offsets: Sequence[CommittedOffset], kept: Sequence[CommittedOffset], stored: list[bool] | ErrorCode
) -> StoredOffsets | ErrorCode:
    """Return what became of all of them; POLICY_VIOLATION of those that were not kept."""
    if isinstance(stored, ErrorCode) or len(kept) == len(offsets):
        return stored
    by_key = dict(zip((offset.partition_key for offset in kept), stored, strict=True))
    return [by_key.get(offset.partition_key, ErrorCode.policy_violation) for offset in offsets]


def _keys(offsets: Iterable[CommittedOffset]) -> list[int]:
    return [offset.partition_key for offset in offsets]


def _check_pending(group: CoordinatedGroup, now: float, member: MemberRef, keys: Collection[int]) -> ErrorCode:
    """Check as check_commit does, with Kafka's differences: a producer may not say for whom it commits, and a member
    may commit while the group rebalances.
    """
    if member == MemberRef(""):
        return ErrorCode.none
    code = group.check_commit(now, member, FIRST_COMMIT_WITH_MEMBER_EPOCH, keys)
    if code is ErrorCode.stale_member_epoch:
        return ErrorCode.illegal_generation
    return ErrorCode.none if code is ErrorCode.rebalance_in_progress else code
