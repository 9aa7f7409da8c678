"""What an operator decides about streams groups.

Place: made from the settings by agent/serve/groups.py, read by the group and its coordinator.
Source: Kafka's group.streams.* settings, KIP-1071; KIP-1263 for the assignment interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.config.group_configs import (
    STREAMS_ASSIGNMENT_INTERVAL,
    STREAMS_HEARTBEAT_INTERVAL,
    STREAMS_INITIAL_DELAY,
    STREAMS_SESSION_TIMEOUT,
    STREAMS_STANDBYS,
)
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import GroupValues, PerGroup, SettingsInForce
from headrace.metastore.log.image import MetadataImage


@dataclass(frozen=True, slots=True)
class StreamsGroupConfigs:
    """One group's configs. Times in seconds."""

    session_timeout: float
    heartbeat_interval: float
    initial_rebalance_delay: float
    assignment_interval: float
    standbys: int
    """Standbys of each task with state."""


class StreamsGroupRules:
    """Rules of all streams groups, with the cluster's values of the settings group.streams.*."""

    def __init__(self, settings: Settings, image: Callable[[], MetadataImage]) -> None:
        """`image`: the newest one."""
        self._image = image
        self._in_force = SettingsInForce(settings, image)
        self._configs = PerGroup(settings, image, _configs)

    @property
    def size_max(self) -> int:
        """group.streams.max.size."""
        return self._in_force.current().group_streams_max_size

    @property
    def is_offered(self) -> bool:
        """Whether all agents know streams groups: streams.version is 1."""
        return self._image().streams_version > 0

    def of(self, group_id: str) -> StreamsGroupConfigs:
        """Return the group's configs."""
        return self._configs.of(group_id)


def _configs(said: GroupValues) -> StreamsGroupConfigs:
    return StreamsGroupConfigs(
        said.number(STREAMS_SESSION_TIMEOUT) / 1000,
        said.number(STREAMS_HEARTBEAT_INTERVAL) / 1000,
        said.number(STREAMS_INITIAL_DELAY) / 1000,
        said.number(STREAMS_ASSIGNMENT_INTERVAL) / 1000,
        said.number(STREAMS_STANDBYS),
    )
