"""Groups of other clusters that links copy: their committed offsets, until their members come here.

    linked group      a group of the source that a link names (config `groups`)
    copied partition  a partition in which a link may write its offsets: a copy, or what was one when it was promoted
    it came           it has members here, or offsets of its clients: from then on no link writes its offsets

Place: workers report groups and write offsets (compactor/links/groups.py); the active controller judges them by the
rights of the link's creator; a group's coordinator asks for the last offsets before the first member gets an assignment
(agent/groups/last_offsets.py); tools read how far they are.
Invariant: an offset that a client committed or set here is never written over, and none is written once a coordinator
has stored that the group has members. No offset passes the end of the copy, or the end that it had at its promotion.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.jobs import JobToken

NO_OFFSETS = "share groups have no committed offsets: set where it begins with kafka-share-groups.sh --reset-offsets"
"""Why such a group is not copied."""


class GroupOutcome(enum.IntEnum):
    """What became of a group's offsets. Numbers are SQL's."""

    COPIED = 0
    CAME = 1
    """The group is here: nothing was written."""
    REFUSED = 2
    """The link's creator may not commit its offsets, or that is not judged yet."""


class LastOffsets(enum.IntEnum):
    """Whether a group's last offsets are here. Numbers are SQL's."""

    DONE = 0
    OLDER = 1
    """Those of an earlier look are here, or the source did not have the group then; the last ones are not."""
    NONE = 2
    """No offsets were copied, also not before."""


class FoundGroup(NamedTuple):
    """A group of the source: Kafka's names of its type and state."""

    group_id: str
    kind: str
    state: str


class LinkedGroup(NamedTuple):
    """A group that a link names. `refusal`: why it is not copied; empty: it is; None: it is not judged yet. Times in
    milliseconds; 0: never.
    """

    link: str
    group_id: str
    kind: str
    """Empty: no report had it; its coordinator here asked for it."""
    state: str
    refusal: str | None
    asked: int
    answered: int
    copied_ms: int
    came_ms: int
    offsets: int
    """Partitions of copies in which the source has an offset of it."""
    behind: int
    """The sum of what its offsets here are behind those of the source, as of the last look."""
    may_have_come: bool = False
    """It has members or offsets of clients here, and is not noted as one that came yet."""

    @property
    def has_members_there(self) -> bool:
        """Whether clients at the source use it."""
        return self.state not in ("", "Empty", "Dead")


class CopiedPartition(NamedTuple):
    """A partition in which offsets may be written, and the topic id at the source of which it is a copy."""

    partition_key: int
    topic: str
    partition_index: int
    source_id: uuid.UUID


class SourceOffset(NamedTuple):
    """An offset that a group committed at the source; `leader_epoch` -1: it has none."""

    partition_key: int
    offset: int
    leader_epoch: int
    metadata: str


class LinkedGroupApi(Protocol):
    """What takes a token is fenced by that lease: FencedError once the job has another holder."""

    async def report_linked_groups(self, token: JobToken, link: str, groups: Sequence[FoundGroup]) -> None:
        """Replace what was found, after a look at every broker of the source. Idempotent."""

    async def note_groups_problem(self, token: JobToken, link: str, problem: str) -> None:
        """Say why offsets are not copied, until the next report. Idempotent."""

    async def note_group_refusals(
        self, links: Sequence[str], group_ids: Sequence[str], refusals: Sequence[str]
    ) -> None:
        """Say why linked groups are not copied; empty: they are. Idempotent."""

    async def linked_groups(self) -> list[LinkedGroup]:
        """The groups of all links, by link and id."""

    async def asked_groups(self, link: str) -> list[LinkedGroup]:
        """Those of a link with coordinators that wait for their last offsets."""

    async def copied_partitions(self, link: str) -> list[CopiedPartition]:
        """The partitions in which the link may write offsets, by key."""

    async def copy_group_offsets(
        self, token: JobToken, link: str, group_id: str, answers: int, offsets: Sequence[SourceOffset]
    ) -> GroupOutcome:
        """Write a group's offsets where that may be. `answers`: its `asked` before the source was asked. Idempotent."""

    async def ask_last_offsets(self, links: Sequence[str], group_id: str) -> bool:
        """Ask the workers of these links for the group's last offsets; False if none has to answer."""

    async def last_offsets(self, group_id: str) -> LastOffsets:
        """Return whether what was asked for is here."""
