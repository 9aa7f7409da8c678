"""What an operator decides about consumer groups, and which assignors there are.

Place: made from the settings by agent/serve/groups.py, read by group.py and the handlers.
Invariant: `assignors` names only assignors that exist; the first is the one for members that ask for none.
Source: Kafka's group.consumer.* settings; KIP-848 for the group configs that override them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from headrace.agent.groups.consumer.assignors import Assignor, assign_ranges, assign_uniformly
from headrace.config.consistency import why_inconsistent
from headrace.config.group_configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs, SettingsInForce
from headrace.metastore.log.image import MetadataImage
from headrace.storage.errors import InvalidError

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}


class MigrationPolicy(enum.Enum):
    """Policy for groups with members: which may change their kind; empty ones always may."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """One group's times in seconds."""

    session_timeout: float
    heartbeat_interval: float


class ConsumerGroupRules:
    """Rules of all consumer groups, with the cluster's values of the settings group.consumer.*."""

    def __init__(self, settings: Settings, image: Callable[[], MetadataImage] = MetadataImage) -> None:
        """`image`: the newest one. InvalidError for settings that do not fit each other."""
        if reason := why_inconsistent(settings):
            raise InvalidError(reason)
        self._in_force = SettingsInForce(settings, image)
        self._configs = EffectiveConfigs(settings)

    @property
    def size_max(self) -> int:
        """group.consumer.max.size."""
        return self._in_force.current().group_consumer_max_size

    @property
    def assignors(self) -> tuple[str, ...]:
        """Their names; the first is the default."""
        return tuple(self._in_force.current().group_consumer_assignors.split(","))

    @property
    def migration(self) -> MigrationPolicy:
        """Directions in which groups with members may change their kind."""
        return MigrationPolicy(self._in_force.current().group_consumer_migration_policy)

    def times(self, image: MetadataImage, group_id: str) -> GroupTimes:
        """Return the times with the group's own configs. Values outside the bounds are refused when they are set;
        if the bounds changed since, the nearest allowed value applies.
        """
        settings = self._in_force.of(image)

        def seconds(name: str, low_ms: int, high_ms: int) -> float:
            strongest, *_ = self._configs.group_layers(image, group_id, name)
            return min(max(int(strongest.value), low_ms), high_ms) / 1000

        return GroupTimes(
            seconds(
                SESSION_TIMEOUT,
                settings.group_consumer_min_session_timeout_ms,
                settings.group_consumer_max_session_timeout_ms,
            ),
            seconds(
                HEARTBEAT_INTERVAL,
                settings.group_consumer_min_heartbeat_interval_ms,
                settings.group_consumer_max_heartbeat_interval_ms,
            ),
        )
