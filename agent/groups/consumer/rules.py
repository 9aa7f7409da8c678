"""What an operator decides about consumer groups, and which assignors there are.

Place: made from the settings by handlers.py, read by group.py and the handlers.
Invariant: `assignors` names only assignors that exist; the first is the one for members that ask for none.
Source: Kafka's group.consumer.* settings; KIP-848 for the group configs that override them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from headrace.agent.groups.consumer.assignors.assignor import Assignor
from headrace.agent.groups.consumer.assignors.range import assign_ranges
from headrace.agent.groups.consumer.assignors.uniform import assign_uniformly
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.storage.errors import InvalidError

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}


class MigrationPolicy(enum.Enum):
    """Which groups with members may change their kind while they live; empty ones always may."""

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
    """For all consumer groups of this agent."""

    def __init__(self, settings: Settings) -> None:
        """InvalidError for times outside their own bounds, and for beats that are no shorter than sessions."""
        self.size_max = settings.group_consumer_max_size
        self.assignors = tuple(settings.group_consumer_assignors.split(","))
        self.migration = MigrationPolicy(settings.group_consumer_migration_policy)
        self._configs = EffectiveConfigs(settings)
        self._session_bounds_ms = (
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        )
        self._interval_bounds_ms = (
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        )
        _refuse_outside("session.timeout.ms", settings.group_consumer_session_timeout_ms, self._session_bounds_ms)
        _refuse_outside(
            "heartbeat.interval.ms", settings.group_consumer_heartbeat_interval_ms, self._interval_bounds_ms
        )
        beat, session = settings.group_consumer_heartbeat_interval_ms, settings.group_consumer_session_timeout_ms
        if beat >= session:
            raise InvalidError(
                f"group.consumer.heartbeat.interval.ms is not less than the session: {beat} >= {session}"
            )

    def times(self, image: MetadataImage, group_id: str) -> GroupTimes:
        """With what is configured for the group itself.

        Values outside the agent's bounds were refused by the agent that was asked; where bounds differ, or changed
        since, the nearest one holds.
        """

        def of(name: str, bounds: tuple[int, int]) -> float:
            value = int(self._configs.group_layers(image, group_id, name)[0].value)
            return min(max(value, bounds[0]), bounds[1]) / 1000

        return GroupTimes(
            of("consumer.session.timeout.ms", self._session_bounds_ms),
            of("consumer.heartbeat.interval.ms", self._interval_bounds_ms),
        )


def _refuse_outside(name: str, value: int, bounds: tuple[int, int]) -> None:
    if not bounds[0] <= value <= bounds[1]:
        raise InvalidError(f"group.consumer.{name} outside its own bounds: value={value} bounds={bounds}")
