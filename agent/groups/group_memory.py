"""Limits the memory that the groups of an agent use: members' subscriptions, assignments, the groups themselves.

Place: asked by the coordinators before a member joins or changes; held_groups.py tells MeasuredGroups what happens
to a group, which measures those that changed in the next turn of the clock, and others now and then.
Invariant: what members use stays below the total. One address uses at most half of it, so that no client keeps
another's members out. Groups without members are bounded by their number and their bytes (held_groups.py). What
joins a group counts at once (`add`); a group that changed is measured soon after. Heartbeats that change nothing are
most of all requests, an image of other topics comes to all groups at once, and measuring takes some 2 µs for each
member, so a turn measures only HEARD_AT_ONCE groups that have nothing else.
Source: Kafka's GROUP_MAX_SIZE_REACHED, for a group that takes no more members.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kio.schema.errors import ErrorCode
from prometheus_client import Counter as Metric

from headrace.agent.limits.client_memory import text_bytes

GROUP_BYTES = 4096
"""What a group without members uses, about."""
MEMBER_BYTES = 1024
"""What a member uses besides its texts and bytes, about."""
PROMISED_BYTES = 256
"""A promised id besides its text, about."""
SAVES_AT_ONCE = 8
"""Groups that are encoded and stored at once. A change of topics, or the end of a delay, may change all of them, and
each encoded one is as large as the group: the others wait as they are."""
NO_ADDRESS = ""
"""Bytes that are no client's alone."""


def group_bytes(group_id: str, protocol_type: str | None = None) -> int:
    """Return what a group uses besides its members. Several tables have its id, each the same text."""
    return GROUP_BYTES + text_bytes(group_id, protocol_type)


def sizes_of_group(own_bytes: int, members: Iterable[tuple[str, int]]) -> Counter[str]:
    """Bytes by address of a group with these members (address, bytes). The group itself is its first member's."""
    sizes: Counter[str] = Counter()
    for address, size in members:
        sizes[address] += size if sizes else size + own_bytes
    return sizes or Counter({NO_ADDRESS: own_bytes})


class GroupMemory:
    """Bytes by group and client address. For one event loop."""

    def __init__(self, total_bytes: int, member_bytes_max: int, limits_reached: Metric) -> None:
        self._total = total_bytes
        self._member_max = member_bytes_max
        self._limits_reached = limits_reached
        self._by_group: dict[str, Mapping[str, int]] = {}
        self._by_address: Counter[str] = Counter()
        self._measured = 0
        self._idle = 0
        self._joined: dict[str, Counter[str]] = {}
        """By group and address, since the group was measured last."""
        self._joined_by_address: Counter[str] = Counter()
        self._joined_total = 0
        self.storing = asyncio.Semaphore(SAVES_AT_ONCE)
        """Held while a group is encoded and stored."""

    @property
    def in_use_bytes(self) -> int:
        return self._measured + self._joined_total

    @property
    def idle_bytes(self) -> int:
        """Bytes of groups without members."""
        return self._idle

    @property
    def unmeasured(self) -> Iterable[str]:
        """Groups that something joined since they were measured last."""
        return self._joined.keys()

    def refuse(self, group_id: str, address: str, size: int, before: int = 0, *, is_first: bool = False) -> ErrorCode:
        """Return why a member may not become `size` bytes large, which has `before` now; NONE counts it.

        `is_first`: it would be the only member of its group.
        """
        if size > self._member_max:
            self._limits_reached.labels("group.member.max.bytes").inc()
            return ErrorCode.invalid_request
        return self.add(group_id, address, max(size - before, 0) + (group_bytes(group_id) if is_first else 0))

    def add(self, group_id: str, address: str, growth: int) -> ErrorCode:
        """Return why a client may not use `growth` more bytes in a group: NONE if it may, and they are counted."""
        of_address = self._by_address[address] + self._joined_by_address[address] + growth
        is_over_total = self.in_use_bytes + growth > self._total
        is_over_half = 2 * of_address > self._total  # one address uses at most half of the memory
        if growth and (is_over_total or is_over_half):
            self._limits_reached.labels("group.memory.bytes").inc()
            return ErrorCode.group_max_size_reached
        if growth:
            self._joined.setdefault(group_id, Counter())[address] += growth
            self._joined_by_address[address] += growth
            self._joined_total += growth
        return ErrorCode.none

    def measured(self, group_id: str, by_address: Mapping[str, int]) -> None:
        """Measure what a group uses now; nothing, if it was released. What joined it before is in it."""
        joined = self._joined.pop(group_id, Counter())
        self._joined_by_address.subtract(joined)
        self._joined_total -= joined.total()
        for address in joined:
            if not self._joined_by_address[address]:
                del self._joined_by_address[address]
        before = self._by_group.pop(group_id, {})
        self._measured += _of_clients(by_address) - _of_clients(before)
        self._idle += by_address.get(NO_ADDRESS, 0) - before.get(NO_ADDRESS, 0)
        self._by_address.subtract(before)
        self._by_address.update(by_address)
        for address in before.keys() - by_address.keys():
            if not self._by_address[address]:
                del self._by_address[address]
        if by_address:
            self._by_group[group_id] = by_address


def _of_clients(by_address: Mapping[str, int]) -> int:
    return sum(size for address, size in by_address.items() if address != NO_ADDRESS)


MEASURED_AT_ONCE = 500
"""Groups in one turn of the event loop; the next turn measures the next ones."""
HEARD_AT_ONCE = 1
"""How many of these may be groups to which only heartbeats and images came, without effect."""


class MeasuredGroups:
    """The groups of one agent that are to be measured."""

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory
        self.changed: dict[str, None] = {}
        """The groups that changed, in that order."""
        self._heard: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self.changed.keys() | self._heard.keys())

    def note(self, group_id: str, *, is_same: bool) -> None:
        """Something happened to the group. `is_same`: it uses as much as before, about."""
        (self._heard if is_same else self.changed)[group_id] = None

    def forget(self, group_id: str) -> None:
        """The group was released, and uses nothing. New groups may come faster than HEARD_AT_ONCE are measured."""
        self.changed.pop(group_id, None)
        self._heard.pop(group_id, None)
        self._memory.measured(group_id, {})

    def measure(self, sizes: Callable[[str], Mapping[str, int]]) -> None:
        """Measure some groups. `sizes`: bytes by client address; empty for a group that was released."""
        if not self.changed:
            self.changed.update(dict.fromkeys(self._memory.unmeasured))
        for group_id in list(itertools.islice(self._heard, HEARD_AT_ONCE)):
            del self._heard[group_id]
            self.changed[group_id] = None
        for group_id in list(itertools.islice(self.changed, MEASURED_AT_ONCE)):
            del self.changed[group_id]
            self._memory.measured(group_id, sizes(group_id))
