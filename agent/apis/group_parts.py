"""What the handlers of groups are made of: the groups that an agent holds, and what is composed around them.

Place: agent/serve/groups.py fills it, once; the rows of groups.py, offsets.py and share_groups.py take from it what
their handlers need.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.classic.coordinator import ClassicCoordinator
from headrace.agent.groups.consumer.coordinator import ConsumerGroups
from headrace.agent.groups.group_memory import GroupMemory
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.offsets.group_offsets import GroupOffsets
from headrace.agent.groups.positions import ConsumerGroupPosition
from headrace.agent.groups.share.coordinator import ShareGroups
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.share.share_offsets import ShareOffsets
from headrace.metastore.log.effective_configs import SettingsInForce


@dataclass(frozen=True, kw_only=True)
class GroupParts:
    """One agent's groups."""

    cluster: ClusterView
    in_force: SettingsInForce
    rng: random.Random
    keeps_principals: bool
    """Members are shown topics by what their principal may do: ACLs are enforced."""
    groups: HeldGroups
    memory: GroupMemory
    coordinator: ClassicCoordinator
    administration: GroupAdministration
    offsets: GroupOffsets
    position: ConsumerGroupPosition
    consumer_groups: ConsumerGroups
    share_groups: ShareGroups
    share_rules: ShareGroupRules
    share_owner: ShareOwner
    share_offsets: ShareOffsets

    @property
    def memory_in_use(self) -> Mapping[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        return {
            "groups": lambda: self.memory.in_use_bytes,
            "idle_groups": lambda: self.memory.idle_bytes,
            "group_positions": lambda: self.position.in_use_bytes,
            "topic_patterns": lambda: self.consumer_groups.topics.in_use_bytes,
            "share_records": lambda: self.share_owner.memory.in_use_bytes,
            "share_states": lambda: self.share_owner.answered.in_use_bytes,
        }

    async def close(self) -> None:
        """Let all groups go; see HeldGroups.close. What members of share groups were answered is in the bucket then."""
        self.share_owner.record_answered()
        await self.groups.close()
        await self.share_owner.answered.close()
