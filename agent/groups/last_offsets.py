"""Has a group's last offsets copied from the source of a link before its first member here gets an assignment.

Place: asked by held_groups.py before it stores that a group has members; compactor/links/groups.py answers.
Invariant: from the moment that it is stored, no link writes the group's offsets (copy_group_offsets.sql). So members
begin where those at the source ended, or, if no worker answers in time, at an earlier copy: records are read again,
none is left out. A group that the source has and of which nothing was copied yet does not begin: its members would
begin at an end of the log. One that the source did not have at the last look is a new one.
"""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Counter

from headrace.agent.cluster.view import ClusterView
from headrace.config.link_configs import GroupFilter, is_paused
from headrace.metastore.api.linked_groups import LastOffsets, LinkedGroupApi
from headrace.metastore.log.image import MetadataImage
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""Shorter than the time after which a client gives up a JoinGroup or a heartbeat."""
LOOK_SECONDS = 0.1


class GroupLinks:
    """Judges which links name a group; looks again only when configs changed."""

    def __init__(self) -> None:
        self._seen: object = None
        self._filters: dict[str, GroupFilter] = {}

    def of(self, image: MetadataImage, group_id: str) -> list[str]:
        """The links that copy the group's offsets, by name."""
        if image.configs is not self._seen:
            links = {name: configs for name, configs in image.links.items() if not is_paused(configs)}
            filters = {name: GroupFilter(configs) for name, configs in sorted(links.items())}
            self._seen, self._filters = image.configs, {name: each for name, each in filters.items() if each}
        return [name for name, names in self._filters.items() if names.matches(group_id)]


class AskLastOffsets:
    """One per agent."""

    def __init__(self, api: LinkedGroupApi, cluster: ClusterView, clock: Clock, registry: CollectorRegistry) -> None:
        self._api, self._cluster, self._clock = api, cluster, clock
        self._links = GroupLinks()
        asked = Counter(
            "headrace_group_last_offsets_total",
            "Groups of which a link was asked for the last offsets; older: they began at an earlier copy of them;"
            " refused: nothing was copied yet, and their members try again",
            ["outcome"],
            registry=registry,
        )
        self._copied, self._older, self._refused = (asked.labels(name) for name in ("copied", "older", "refused"))

    async def __call__(self, group_id: str) -> ErrorCode:
        """Return NONE once the group may have members; COORDINATOR_LOAD_IN_PROGRESS if they have to try again."""
        links = self._links.of(self._cluster.image, group_id)
        if not links:
            return ErrorCode.none
        try:
            if not await self._api.ask_last_offsets(links, group_id):
                return ErrorCode.none
            found = await self._answer(group_id)
        except HeadraceError as error:
            logger.warning("last offsets not asked for: group=%s error=%s", group_id, error)
            found = LastOffsets.NONE
        if found is LastOffsets.NONE:
            self._refused.inc()
            return ErrorCode.coordinator_load_in_progress
        (self._copied if found is LastOffsets.DONE else self._older).inc()
        if found is LastOffsets.OLDER:
            logger.warning("group begins at offsets of an earlier copy: group=%s links=%s", group_id, ",".join(links))
        return ErrorCode.none

    async def _answer(self, group_id: str) -> LastOffsets:
        until = self._clock.monotonic() + WAIT_SECONDS
        while True:
            found = await self._api.last_offsets(group_id)
            if found is LastOffsets.DONE or self._clock.monotonic() >= until:
                return found
            await self._clock.sleep(LOOK_SECONDS)
