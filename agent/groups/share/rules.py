"""What an operator decides about share groups.

Place: made from the settings by agent/serve/groups.py, read by the group and by the owner of its records.
Source: Kafka's group.share.* settings; KIP-932 and KIP-1240 for the group configs that override them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.agent.groups.share.in_flight import AcquireLimits
from headrace.config.group_configs import (
    BOUNDS,
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
from headrace.metastore.log.effective_configs import EffectiveConfigs, SettingsInForce, set_for_all_brokers
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
        self._configs = EffectiveConfigs(settings)
        self._made: dict[str, ShareGroupConfigs] = {}
        self._made_of: object = None

    @property
    def size_max(self) -> int:
        """group.share.max.size."""
        return self._in_force.current().group_share_max_size

    @property
    def is_offered(self) -> bool:
        """Whether all agents know share groups: share.version is 1."""
        return self._image().share_version > 0

    def of(self, group_id: str) -> ShareGroupConfigs:
        """Return the group's configs. Values outside the bounds are refused when they are set; if the bounds changed
        since, the nearest allowed value applies.
        """
        image = self._image()
        if image.configs is not self._made_of:
            self._made, self._made_of = {}, image.configs
        found = self._made.get(group_id)
        if found is None:
            found = self._made[group_id] = self._make(image, group_id)
        return found

    def _make(self, image: MetadataImage, group_id: str) -> ShareGroupConfigs:
        def text(name: str) -> str:
            return self._configs.group_layers(image, group_id, name)[0].value

        def number(name: str) -> int:
            cluster = set_for_all_brokers(image)
            low, high = (int(self._configs.cluster_value(cluster, bound)) for bound in BOUNDS[name])
            return min(max(int(text(name)), low), high)

        return ShareGroupConfigs(
            number(SHARE_SESSION_TIMEOUT) / 1000,
            number(SHARE_HEARTBEAT_INTERVAL) / 1000,
            AcquireLimits(
                number(SHARE_LOCK_DURATION) / 1000,
                number(SHARE_DELIVERY_LIMIT),
                number(SHARE_RECORD_LOCKS),
                text(SHARE_RENEW).lower() == "true",
            ),
            text(SHARE_OFFSET_RESET),
            text(SHARE_ISOLATION) == "read_committed",
        )
