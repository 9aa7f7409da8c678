"""Links: topics that are copies of another cluster's, with the same offsets, until they are promoted.

    link             a resource of the metadata log with configs (config/link_configs.py): where the source is
    found topic      what a worker saw at the source of a topic that the link names
    linked topic     the copy: a topic with the config `link.name`; its partitions are LINKED and take no records
    linked partition where its copy is, and where the source was when a worker looked

Place: workers (compactor/links) report what they find and append what they copied; the active controller makes topics
of it (agent/cluster/controller/link_steps.py); agents and tools read it.
Invariant: only `append_linked` writes a linked partition. It appends what begins at the partition's log end, all runs
of a partition or none, in one transaction: a chunk that is repeated, late or another worker's changes nothing.
Invariant: a partition's own leader epoch is above those of its source, which its extents keep.
Times in milliseconds on the database's clock.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.compaction import NewFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.topics import NewTopic

LINKED_EPOCH = 2_040 << 20
"""The leader epoch of a linked partition: above all that a source can have up to life 2,039."""
EPOCHS_APART = 1 << 16
"""How far it is above its source's if that is itself a promoted copy: the source's epoch rises with its count."""


def linked_epoch(source_epoch: int) -> int:
    """Return the leader epoch of linked partitions of a topic of which this is the source's highest one."""
    return max(LINKED_EPOCH, source_epoch + EPOCHS_APART)


GONE = "deleted at the source"
"""The problem of a found topic that is not there any more; only of links with `link.delete.topics`."""


class FoundTopic(NamedTuple):
    """A topic of the source that a link names. `problem` not empty: it is not copied, for this reason."""

    link: str
    name: str
    source_id: uuid.UUID
    partition_count: int
    leader_epoch: int
    """The highest one of its partitions."""
    configs: dict[str, str]
    """Those that the source was given for the topic, by name; only those that Headrace has."""
    problem: str = ""


class SourceReport(NamedTuple):
    """What a worker saw of a link's source. `problem` not empty: it could not be read."""

    link: str
    cluster_id: str
    topics: Sequence[FoundTopic] = ()
    problem: str = ""


class LinkSource(NamedTuple):
    """The source of a link as of the last report. `cluster_id` empty: no worker has reached it yet."""

    link: str
    cluster_id: str
    seen_ms: int
    problem: str
    groups_problem: str = ""
    """Why offsets of groups are not copied; empty: they are, if the link names some."""


class Promotion(enum.IntEnum):
    """Whether a linked topic is to become an ordinary one. Numbers are stored."""

    NONE = 0
    ASKED = 1
    """As soon as the copy has all that the source has."""
    FORCED = 2
    """With what it has."""


class LinkedTopic(NamedTuple):
    """A copy. `configs`: those of the source that were set here last, by name; None: not known."""

    topic_id: uuid.UUID
    name: str
    link: str
    source_id: uuid.UUID
    promotion: Promotion
    configs: dict[str, str] | None


class NewLinkedTopic(NamedTuple):
    """A topic to create as a copy. `topic.configs` has `link.name`."""

    topic: NewTopic
    link: str
    source_id: uuid.UUID
    leader_epoch: int


class LinkedGrowth(NamedTuple):
    """The source has more partitions than the copy."""

    topic_id: uuid.UUID
    first_index: int
    partition_count: int
    leader_epoch: int


class LinkedPartition(NamedTuple):
    """A partition of a linked topic, for the worker that copies it."""

    partition_key: int
    topic_id: uuid.UUID
    name: str
    partition_index: int
    source_id: uuid.UUID
    log_start_offset: int
    high_watermark: int
    """The log end: where the copy goes on."""
    last_epoch: int
    """The source's leader epoch of the last record; -1: there is none."""
    promotion: Promotion
    problem: str


class PartitionReport(NamedTuple):
    """Where the source's partition is. `problem` not empty: it is not copied, for this reason."""

    partition_key: int
    source_start: int
    source_end: int
    """Its high watermark."""
    source_stable: int
    """Its last stable offset."""
    is_ready: bool = False
    """Whether the copy has all that the source has, and the states of its producers: it may be promoted."""
    lost: int = 0
    """Offsets that the source no longer had when the copy came to them, since the report before."""
    problem: str = ""


class LinkedProgress(NamedTuple):
    """A linked partition as people read it. Offsets of the source are -1 before the first report."""

    link: str
    topic: str
    topic_id: uuid.UUID
    partition_index: int
    partition_key: int
    log_start_offset: int
    high_watermark: int
    source_start: int
    source_end: int
    source_stable: int
    seen_ms: int
    current_ms: int
    """When the copy last had all that the source had; 0: never."""
    copied_bytes: int
    lost: int
    promotion: Promotion
    is_ready: bool
    problem: str

    @property
    def lag(self) -> int:
        """Offsets that the copy lacks, as of the last report."""
        return max(self.source_end - self.high_watermark, 0)


class LinkedRun(NamedTuple):
    """Neighbouring batches of one partition in a file, with the source's offsets and leader epoch: one extent."""

    partition_key: int
    base_offset: int
    last_offset: int
    position: int
    length: int
    leader_epoch: int
    max_timestamp: int


class CopiedProducer(NamedTuple):
    """A producer's state after the runs of a partition. `ring`: up to five batches, the newest first: first and last
    sequence (int32), base offset and time in ms (int64).
    """

    partition_key: int
    producer_id: int
    epoch: int
    next_sequence: int
    ring: bytes


class LinkedOutcome(enum.IntEnum):
    """What became of a run. Numbers are SQL's."""

    DONE = 0
    LOST = 1
    """The partition's log ends elsewhere by now, or it is no linked one any more."""
    OWN_PRODUCER = 2
    """A producer id of the source is also one of this cluster's: the two must not meet."""


class LinkApi(Protocol):
    """What takes a token is fenced by that lease: FencedError once the job has another holder."""

    async def link_configs(self) -> dict[str, dict[str, str]]:
        """The configs of all links: link -> name -> value; secrets as they are stored."""

    async def report_source(self, token: JobToken, report: SourceReport) -> bool:
        """Replace what was found of the source. The first cluster id stays: False, with the problem noted and nothing
        else changed, if another cluster answers. Idempotent.
        """

    async def link_sources(self) -> list[LinkSource]:
        """The source of each link that a worker has looked at."""

    async def found_topics(self) -> list[FoundTopic]:
        """What the sources of all links have."""

    async def note_refused_topics(self, names: Sequence[str], links: Sequence[str], problems: Sequence[str]) -> None:
        """Say why found topics are not copied; empty: they are. Until the next report of the source."""

    async def create_linked_topics(
        self, controller_epoch: int, expected_head: int, topics: Sequence[NewLinkedTopic]
    ) -> bool:
        """Create the copies, empty. False when the head is not `expected_head`; FencedError for a stale epoch."""

    async def grow_linked_topics(
        self, controller_epoch: int, expected_head: int, growths: Sequence[LinkedGrowth]
    ) -> bool:
        """Add partitions to the copies. Errors as create_linked_topics."""

    async def linked_topics(self) -> list[LinkedTopic]:
        """The copies of all links, by name."""

    async def note_linked_configs(self, configs: Mapping[uuid.UUID, Mapping[str, str]]) -> None:
        """Note which configs of the source a copy was given last: topic id -> name -> value. Idempotent."""

    async def linked_partitions(self, link: str) -> list[LinkedPartition]:
        """The partitions that the link copies, by key."""

    async def append_linked(
        self, token: JobToken, file: NewFile, runs: Sequence[LinkedRun], producers: Sequence[CopiedProducer]
    ) -> list[LinkedOutcome]:
        """Append runs of a stored file, of which the segments were started, and set the states of producers unjudged.

        `runs`: by partition, then in offset order. NotFoundError for a file id that cannot be used any more.
        """

    async def add_copied_producers(self, token: JobToken, producers: Sequence[CopiedProducer]) -> list[bool]:
        """Set states that the source has and no copied batch set; False for a producer id of this cluster."""

    async def report_partitions(self, token: JobToken, reports: Sequence[PartitionReport]) -> None:
        """Note where the source is; for partitions that are no linked ones any more it does nothing. Idempotent but
        for `lost`, which counts.
        """

    async def ask_promotion(self, topic_ids: Sequence[uuid.UUID], *, force: bool) -> int:
        """Note that linked topics are to be promoted; how many of these are linked ones. Idempotent."""

    async def promote_topics(
        self, controller_epoch: int, expected_head: int, topic_ids: Sequence[uuid.UUID], names: Sequence[str]
    ) -> bool:
        """Make linked topics ordinary ones, in one transaction with the records that say so. False when the head is not
        `expected_head`, or a topic is not ready any more; FencedError for a stale epoch.
        """

    async def linked_progress(self) -> list[LinkedProgress]:
        """All linked partitions, by link, topic and index."""

    async def forget_link(self, link: str) -> None:
        """Forget what was found of the source of a link that was dropped. Idempotent."""
