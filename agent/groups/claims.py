"""Claims groups: which group may be claimed, which claims arrive late.

Place: under held_groups.py, above the metastore's GroupApi. NewGroups is asked before a group is claimed that this
agent has not in memory, because a claim makes a row.
Invariant: a group that is stored is never refused: one with a longer id than new ones may have, and one where the
cluster has its most offsets and groups.
A claim of which the outcome was unknown may be carried out after its repetition, and after the group was
released: then this agent holds the group without knowing it, and bars all others. So for DOUBT_SECONDS after such a
claim, a group that is not in memory is claimed and given back every LOOK_SECONDS. Postgres cancels a statement long
before that. If the process ends, its registration does, and all its claims with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.coordinated import CoordinatedGroup
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.limits.client_rows import COMMITTED_OFFSETS, RowLimits
from headrace.agent.limits.client_texts import is_long, may_be_stored
from headrace.metastore.api.groups import GroupApi, GroupClaim
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError

BeforeMembers = Callable[[str], Awaitable[ErrorCode]]
"""Waits for what has to be there before a group has members; NONE if it may have some."""


class NewGroups:
    """Judges groups that are not in memory. `rows`: limits on what is stored; None: there are none."""

    def __init__(self, api: GroupApi, rows: RowLimits | None, before_members: BeforeMembers | None = None) -> None:
        self.api, self.rows, self._before_members = api, rows, before_members

    async def may_have_members(self, group_id: str) -> ErrorCode:
        """Return NONE once an empty group may have members: what a link copies of it is there."""
        return ErrorCode.none if self._before_members is None else await self._before_members(group_id)

    async def refusal(self, group_id: str) -> ErrorCode:
        """Return NONE if the group may be claimed. HeadraceError if the metastore does not answer."""
        has_room = self.rows is None or await self.rows.has_room(COMMITTED_OFFSETS)
        if (has_room and not is_long(group_id)) or await self._is_stored(group_id):
            return ErrorCode.none
        if is_long(group_id):
            return ErrorCode.invalid_group_id
        if self.rows is not None:
            self.rows.refused(COMMITTED_OFFSETS)
        return ErrorCode.policy_violation

    async def _is_stored(self, group_id: str) -> bool:
        return may_be_stored(group_id) and bool(await self.api.list_groups([group_id]))


CLAIM_RETRY_SECONDS = 0.2
CLAIM_WAIT_SECONDS = 2.0
"""How long a request waits for the group's last holder to release it, before the client is sent to ask again."""
DOUBT_SECONDS = 600.0
LOOK_SECONDS = 5.0
DOUBTS_MAX = 100
"""Beyond this, the oldest are not looked at: after an outage with many groups, looks must not be a load."""


@dataclass(slots=True, eq=False)
class Held:
    """A group that this agent has claimed."""

    group: CoordinatedGroup
    epoch: int
    broker_epoch: int
    used_at: float
    state_name: str
    """The state that was counted last."""
    is_empty: bool
    """Whether it is stored as a group without members."""
    wake_at: float | None = None
    saves: asyncio.Lock = field(default_factory=asyncio.Lock)
    commits: asyncio.Lock = field(default_factory=asyncio.Lock)


class GroupClaims:
    """The claims of one agent."""

    def __init__(self, api: GroupApi, cluster: ClusterView, clock: Clock, metrics: GroupMetrics) -> None:
        self._api, self._cluster, self._clock, self._metrics = api, cluster, clock, metrics
        self._doubts: dict[str, float] = {}
        """Group id -> until when a claim of it may arrive; the oldest first."""
        self._next_look = 0.0

    @property
    def has_doubts(self) -> bool:
        """Whether a claim may still arrive."""
        return bool(self._doubts)

    async def claim(self, group_id: str, broker_epoch: int) -> GroupClaim | ErrorCode:
        """Claim the group, repeatedly until it is known who holds the group: a claim with a lost answer may have
        been made, and bars all others.
        """
        until = self._clock.monotonic() + CLAIM_WAIT_SECONDS
        unknown = False
        while unknown or self._clock.monotonic() < until:
            try:
                claim = await self._once(group_id, broker_epoch)
                if claim is not None:
                    return claim
                unknown = False
            except OutcomeUnknownError:
                unknown = True
            except FencedError:
                raise
            except HeadraceError:
                if not unknown:
                    raise
            await self._clock.sleep(CLAIM_RETRY_SECONDS)
        self._metrics.load_barred.inc()
        return ErrorCode.coordinator_not_available

    def to_look_at(self, now: float) -> list[str]:
        """Return the groups of which a claim may have arrived since the last look; none before the next one is due."""
        if not self._doubts or now < self._next_look:
            return []
        self._next_look = now + LOOK_SECONDS
        self._doubts = {group_id: until for group_id, until in self._doubts.items() if until > now}
        return list(self._doubts)

    async def look(self, group_id: str, broker_epoch: int) -> GroupClaim | None:
        """Claim a group only to give it back; None if another agent holds it, or if it has to be looked at again."""
        try:
            return await self._once(group_id, broker_epoch)
        except HeadraceError:
            return None

    async def _once(self, group_id: str, broker_epoch: int) -> GroupClaim | None:
        try:
            return await self._api.claim_group(group_id, self._cluster.node_id, broker_epoch)
        except OutcomeUnknownError:
            self._doubts.pop(group_id, None)
            if len(self._doubts) >= DOUBTS_MAX:
                del self._doubts[next(iter(self._doubts))]
            self._doubts[group_id] = self._clock.monotonic() + DOUBT_SECONDS
            raise
