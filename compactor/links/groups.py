"""Copies the offsets of a source's groups, and answers coordinators here that wait for the last ones.

    look      all groups that the link names: what the source has, then what each committed, where it changed
    answer    the same for groups that are about to get members here

Place: in the job `link-topics` (discovery.py). copy_group_offsets decides what is written.
Invariant: offsets are read first, and the source's topics after them: a topic that has our copy's id then had it when
the offsets were read, so no offset of another topic of the name, or of another cluster, is written.
What a run wrote is in its memory and not written again; each run begins by writing all, which keeps the offsets here
from expiring while the group uses them at the source.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from headrace.compactor.links.source import CommittedAt, GroupOffsets, Source, TopicIndex
from headrace.config.link_configs import GroupFilter
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.linked_groups import (
    CopiedPartition,
    FoundGroup,
    GroupOutcome,
    LinkedGroup,
    LinkedGroupApi,
    SourceOffset,
)
from headrace.storage.errors import InvalidError

GROUPS_MAX = 10_000
"""Groups that one link takes."""
OFFSETS_MAX = 200_000
"""Offsets of all of them."""
GROUPS_PER_REQUEST = 100
TOPICS_PER_REQUEST = 500


class GroupCopies:
    """The groups of one link, for one run of its job."""

    def __init__(
        self, link: str, api: LinkedGroupApi, source: Source, names: GroupFilter, token: JobToken, cluster_id: str
    ) -> None:
        """`cluster_id`: of the link's source."""
        self._link, self._api, self._source, self._names = link, api, source, names
        self._token, self._cluster_id = token, cluster_id
        self._coordinators: dict[str, int] = {}
        self._written: dict[str, Sequence[SourceOffset]] = {}

    async def look(self) -> int:
        """Look at all groups; how many there are. Errors as Source; InvalidError for too many."""
        found = [
            group
            for group in await self._source.groups()
            if self._names.names(group.group_id, group.kind, group.protocol_type)
        ]
        if len(found) > GROUPS_MAX:
            raise InvalidError(f"the link names {len(found)} groups: at most {GROUPS_MAX}")
        by_id = {group.group_id: group for group in found}
        self._coordinators = {group_id: group.coordinator for group_id, group in by_id.items()}
        reported = [FoundGroup(group_id, group.kind, group.state) for group_id, group in sorted(by_id.items())]
        await self._api.report_linked_groups(self._token, self._link, reported)
        self._written = {group_id: offsets for group_id, offsets in self._written.items() if group_id in by_id}
        rows = [row for row in await self._api.linked_groups() if row.link == self._link and row.refusal == ""]
        await self._copy([row for row in rows if row.group_id in by_id])
        return len(by_id)

    async def answer(self) -> None:
        """Copy the offsets of groups with coordinators that wait for them."""
        asked = await self._api.asked_groups(self._link)
        if not asked:
            return
        if any(row.group_id not in self._coordinators for row in asked):
            await self.look()  # a group that is new at the source, or not there: the report answers then
        else:
            await self._copy([row for row in asked if row.refusal == ""])  # others: the controller's turn

    async def _copy(self, rows: Sequence[LinkedGroup]) -> None:
        """Copy what these groups committed. A group of which the source does not say is left for the next look."""
        if not rows:
            return
        partitions = await self._api.copied_partitions(self._link)
        committed = await self._committed([row.group_id for row in rows])
        if sum(map(len, committed.values())) > OFFSETS_MAX:
            raise InvalidError(f"the groups that the link names have more than {OFFSETS_MAX} offsets")
        same = await self._same_topics(partitions)
        for row in rows:
            if row.group_id in committed:
                await self._write(row, _offsets(committed[row.group_id], same))

    async def _committed(self, group_ids: Iterable[str]) -> dict[str, GroupOffsets]:
        by_node = defaultdict[int, list[str]](list)
        for group_id in group_ids:
            by_node[self._coordinators[group_id]].append(group_id)
        found: dict[str, GroupOffsets] = {}
        for node, own in by_node.items():
            for first in range(0, len(own), GROUPS_PER_REQUEST):
                found |= await self._source.group_offsets(node, own[first : first + GROUPS_PER_REQUEST])
        return found

    async def _same_topics(self, partitions: Sequence[CopiedPartition]) -> dict[TopicIndex, int]:
        """The partition keys of copies of topics that the source has now, by what the source calls them."""
        names, ids = sorted({each.topic for each in partitions}), dict[str, uuid.UUID]()
        for first in range(0, len(names), TOPICS_PER_REQUEST):
            found = await self._source.metadata(names[first : first + TOPICS_PER_REQUEST])
            if found.cluster_id != self._cluster_id:
                raise InvalidError(f"another cluster answers: expected={self._cluster_id} found={found.cluster_id}")
            ids |= {name: topic.topic_id for name, topic in found.topics.items()}
        return {
            (each.topic, each.partition_index): each.partition_key
            for each in partitions
            if ids.get(each.topic) == each.source_id
        }

    async def _write(self, row: LinkedGroup, offsets: Sequence[SourceOffset]) -> None:
        """Write offsets if the source has others than before, or is ahead of the copy; or if a coordinator waits, or
        the group has come here.
        """
        is_new = self._written.get(row.group_id) != offsets or row.behind or row.asked > row.answered
        if not is_new and not row.may_have_come:
            return
        outcome = await self._api.copy_group_offsets(self._token, self._link, row.group_id, row.asked, offsets)
        if outcome is not GroupOutcome.REFUSED:
            self._written[row.group_id] = offsets


def _offsets(committed: Mapping[TopicIndex, CommittedAt], keys: Mapping[TopicIndex, int]) -> list[SourceOffset]:
    """Return the offsets in copies, by partition key."""
    return sorted(SourceOffset(keys[place], *each) for place, each in committed.items() if place in keys)
