"""What an operator decides about share groups.

Place: made from the settings by agent/serve/groups.py, read by the group and by the owner of its records.
Source: Kafka's group.share.* settings; KIP-932 and KIP-1240 for the group configs that override them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.agent.groups.share.in_flight import AcquireLimits
from headrace.config.group_configs import (
    SHARE_DELIVERY_LIMIT,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_ISOLATION,
    SHARE_LOCK_DURATION,
    SHARE_OFFSET_RESET,
    SHARE_RECORD_LOCKS,
    SHARE_RENEW,
    SHARE_SESSION_TIMEOUT,
)
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import GroupValues, PerGroup, SettingsInForce
from headrace.metastore.log.image import MetadataImage


@dataclass(frozen=True, slots=True)
class ShareGroupConfigs:
    """One group's configs. Times in seconds."""

    session_timeout: float
    heartbeat_interval: float
    limits: AcquireLimits
    offset_reset: str
    read_committed: bool


class ShareGroupRules:
    """Rules of all share groups, with the cluster's values of the settings group.share.*."""

    def __init__(self, settings: Settings, image: Callable[[], MetadataImage]) -> None:
        """`image`: the newest one."""
        self._image = image
        self._in_force = SettingsInForce(settings, image)
        self._configs = PerGroup(settings, image, _configs)

    @property
    def size_max(self) -> int:
        """group.share.max.size."""
        return self._in_force.current().group_share_max_size

    @property
    def is_offered(self) -> bool:
        """Whether all agents know share groups: share.version is 1."""
        return self._image().share_version > 0

    def of(self, group_id: str) -> ShareGroupConfigs:
        """Return the group's configs."""
        return self._configs.of(group_id)


def _configs(said: GroupValues) -> ShareGroupConfigs:
    return ShareGroupConfigs(
        said.number(SHARE_SESSION_TIMEOUT) / 1000,
        said.number(SHARE_HEARTBEAT_INTERVAL) / 1000,
        AcquireLimits(
            said.number(SHARE_LOCK_DURATION) / 1000,
            said.number(SHARE_DELIVERY_LIMIT),
            said.number(SHARE_RECORD_LOCKS),
            said.text(SHARE_RENEW).lower() == "true",
        ),
        said.text(SHARE_OFFSET_RESET),
        said.text(SHARE_ISOLATION) == "read_committed",
    )
