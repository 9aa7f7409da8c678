"""Topics that halve for clients that know only the count (metastore/partitions/merging.py).

Place: between the requests and the controller on one side, and the metadata log; the commit has the rule for batches.
Invariant: each step is one transaction, with the records that say so, and leads to a state from which any controller
continues. A child is merged only when every group that counts has committed its end, which the store checks itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

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
