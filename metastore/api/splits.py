"""Topics that double for clients that know only the count (metastore/partitions/splitting.py).

Place: between the controller and the metadata log; the commit has the rule for batches.
Invariant: a doubling and a boundary are each one transaction, with the records that say so.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

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
