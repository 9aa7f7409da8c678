"""Topics that halve for clients that know only the count (metastore/partitions/merging.py).

Place: between the requests and the controller on one side, and the metadata log; the commit has the rule for batches.
Invariant: each step is one transaction, with the records that say so, and leads to a state from which any controller
continues. A child is merged only when every group that counts has committed its end, which the store checks itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.partitions.changes import Shrinking
from headrace.metastore.partitions.merging import MergePhase, MergeTimes


class Halving(NamedTuple):
    """A topic's halving to `partition_count` partitions. `excluded_groups`: ids of groups that nothing waits for."""

    topic_id: uuid.UUID
    partition_count: int
    excluded_groups: Sequence[str] = ()
    times: MergeTimes = MergeTimes()


class HalvingPair(NamedTuple):
    """A child and its parent. `lag`: records of the child that the slowest group has not committed."""

    child_key: int
    parent_key: int
    phase: MergePhase
    since_ms: int
    high_watermark: int
    lag: int
    behind: Sequence[str]
    """Some groups with a lag, the slowest first."""


class HalvingState(NamedTuple):
    """`now_ms`: the metastore's clock. `shown_ms`: when the lower count was shown; None: not yet."""

    partition_count: int
    now_ms: int
    shown_ms: int | None
    times: MergeTimes
    pairs: Sequence[HalvingPair]


class HalvingStateApi(Protocol):
    """What requests and steps are judged by."""

    async def halving_state(self, topic_id: uuid.UUID) -> HalvingState | None:
        """None: the topic does not halve."""


class HalvingStepApi(HalvingStateApi, Protocol):
    """The controller's steps in their order; see metastore/postgres/cluster/merge_children.sql.

    Those that append records return False, and nothing happened, when the log's head is not the expected one (catch up
    and judge again) or when the step is not due. FencedError for a stale controller epoch.
    """

    async def pause_children(self, controller_epoch: int, child_keys: Sequence[int]) -> int:
        """Pause those children that drain; return how many."""

    async def resume_children(self, controller_epoch: int, child_keys: Sequence[int]) -> int:
        """Resume those children that are paused; return how many."""

    async def merge_children(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, pairs: Sequence[HalvingPair]
    ) -> bool:
        """All of these, which are paused, become aliases of their parents, or none."""

    async def show_halved_count(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, initial: int, change: Shrinking
    ) -> bool:
        """Show the lower count. `initial`: the topic's."""

    async def settle_halving(self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID) -> bool:
        """Only aliases are left of it."""


class HalvingRequestApi(HalvingStateApi, Protocol):
    """What operators ask for; see metastore/postgres/cluster/halve_topic.sql.

    False, and nothing happened, when the log's head is not the expected one.
    """

    async def begin_halving(self, expected_head: int, halving: Halving) -> bool:
        """Begin a halving: the controller drains, pauses and merges the topic's children."""

    async def cancel_halving(self, expected_head: int, topic_id: uuid.UUID) -> bool:
        """Give it up; False also when a child is merged."""


class HalvingApi(HalvingRequestApi, HalvingStepApi, Protocol):
    """All of it."""
