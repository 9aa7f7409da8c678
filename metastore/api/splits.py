"""Topics that double for clients that know only the count (metastore/partitions/splitting.py).

Place: between the controller and the metadata log; the commit has the rule for batches.
Invariant: a doubling and a boundary are each one transaction, with the records that say so.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.bulk import CountAnnouncementApi
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.partitions.changes import Expansion


class Doubling(NamedTuple):
    """A topic's expansion from `before` partitions to twice as many, planned from the image at the expected head.

    `initial`: its initial count. Times are those of splitting.py.
    """

    topic_id: uuid.UUID
    initial: int
    before: int
    change: Expansion
    producer_quiet_ms: int
    boundary_quiet_ms: int


class QuietSplit(NamedTuple):
    """A parent that waits for its boundary, and got no key that moved for long enough."""

    topic_id: uuid.UUID
    parent_key: int
    child_key: int
    last_moved_ms: int
    high_watermark: int
    """The boundary, if no such key comes before it is set."""


class ReadingGroup(NamedTuple):
    """A group that reads a topic. `kind` None: it has offsets only, like consumers with assign()."""

    group_id: str
    kind: GroupKind | None
    state: str
    late: int
    """Parents with a boundary that the group has not passed, so that it does not get their children."""


class SplitApi(CountAnnouncementApi, Protocol):
    """What the commit judges by."""

    async def double_topic(self, expected_head: int, doubling: Doubling) -> bool:
        """Append the records of the new count and of the splits, and their projection, in one transaction.

        False, and nothing happened, when the log's head is not `expected_head` (catch up and judge again). Groups with
        an offset in a parent get one at the child's start.
        """

    async def agents_behind(self, offset: int) -> Sequence[int]:
        """Node ids of the agents that are not fenced and have not said that they applied the log up to `offset`."""

    async def topic_readers(self, topic_id: uuid.UUID) -> Sequence[ReadingGroup]:
        """The groups with an offset in the topic or with members that consume it, by id."""

    async def quiet_splits(self, limit: int) -> Sequence[QuietSplit]:
        """Return at most so many quiet splits, by age."""

    async def set_split_boundary(self, controller_epoch: int, expected_head: int, split: QuietSplit) -> bool:
        """False, and nothing happened, when the log's head moved or a moved key came. FencedError for a stale epoch."""
