"""The metastore's operations on the cluster as a whole, and not on topics, groups or files.

Place: under agent/cluster; background workers, the zone cache and commands ask for configs, settings and the secret.
The metadata log (KIP-631) is under every agent's image of the cluster (agent/cluster/follower.py) and the admin
requests. Each process reports settings (metastore/setting_reporter.py), the active controller records what all agree
on (agent/cluster/controller/upkeep_steps.py).
Invariant of the metadata log: the log has no gaps, and its projection in tables changes in the same transaction.
Invariant of the zone secret: an agent signs with one secret, and accepts every one that another agent may sign with.
It answers with the secret of the question.
Invariant of settings: a report says what a file says, not what applies. The value that applies is a ConfigRecord in
the metadata log; nothing here changes it.
Order: an agent registers, renews its lease by heartbeats, and leaves.
Locks: what appends records takes that of the log's head; a growth of the commit shards waits for all writing calls.
Invariant: the identity never changes in a cluster's life; the count of commit shards only grows, by doublings,
between two commits: no commit, swap or log start has the locks of one count and the feed of the other
(docs/decisions/0077).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol, Self, TypeVar

from headrace.metastore.api.agents import SUPPORTED_FEATURES, AgentRegistration, HeartbeatAnswer, RegisteredAgent
from headrace.storage.errors import InvalidError


class MetadataRecord:
    """Base of all record types (metastore/log/kip631_records.py, own_records.py)."""

    __slots__ = ()
    record_type: ClassVar[int]


class StoredSnapshot(NamedTuple):
    """`data` is a whole snapshot file (metastore/log/snapshot.py) that replaces the log below `end_offset`."""

    end_offset: int
    data: bytes


class MetadataLogApi(Protocol):
    """Reading the log, and appending to it (C1)."""

    async def metadata_head(self) -> int:
        """The next offset of the metadata log."""

    async def metadata_log_start(self) -> int:
        """The lowest offset that read_metadata still answers."""

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        """Framed records from `start_offset` on, gap-free; empty at the head.

        TruncatedError below metadata_log_start: start from the newest snapshot.
        """

    async def newest_snapshot(self) -> StoredSnapshot | None:
        """The newest snapshot; the record below its end and all after it are still in the log. None: there is none."""

    async def append_records(
        self, expected_head: int, records: Sequence[MetadataRecord], *, controller_epoch: int | None = None
    ) -> bool:
        """Append records that have no separate operation, judged against the image at `expected_head`.

        For configs, access control, SCRAM credentials, delegation tokens, quotas, failed replicas, feature
        levels and partition changes, and the removals of these. False, and nothing happened, when the log's head
        is another. InvalidError for another type, and for one that the active metadata.format lacks.
        `controller_epoch`: FencedError unless it is still the active controller's.
        """


T = TypeVar("T")


class ZoneSecret(bytes):
    """What an agent signs with; `other` is accepted too, if there is one."""

    other: bytes | None

    def __new__(cls, own: bytes, other: bytes | None = None) -> Self:
        made = super().__new__(cls, own)
        made.other = other
        return made


class Rotation(NamedTuple):
    """After `step` (added, switched or done); it was not taken while agents in `waits_for` may not know the one
    before it."""

    step: str
    waits_for: tuple[int, ...]


def opened_with(secret: bytes, read: Callable[[bytes], T]) -> tuple[T, bytes]:
    """(what `read` returns, the accepted secret with which it did). InvalidError if none fits."""
    try:
        return read(secret), secret
    except InvalidError:
        other = secret.other if isinstance(secret, ZoneSecret) else None
        if other is None:
            raise
        return read(other), other


@dataclass(frozen=True, slots=True)
class SettingReport:
    """One running process. `proposals`: name of a cluster setting -> value in its file, or its default."""

    incarnation_id: uuid.UUID
    process: str
    """Host and process id, for people."""
    roles: tuple[str, ...]
    node_id: int | None
    """The node id of an agent that has registered."""
    proposals: Mapping[str, str]
    features: Mapping[str, int] = field(
        default_factory=lambda: {name: levels.max_level for name, levels in SUPPORTED_FEATURES.items()}
    )
    """The highest level that the process supports."""


class SettingProposals(NamedTuple):
    """What all running processes report together."""

    undecided: Mapping[str, Mapping[str, tuple[str, ...]]]
    """Settings without a value: name -> proposed value -> processes that propose it."""
    role_counts: Mapping[str, int]
    """Role -> running processes with it."""
    unreported_agents: int
    """Unfenced agents without a report: of an older version, or just starting or stopping."""

    @property
    def disputed(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """The undecided settings that running processes disagree about."""
        return {name: proposals for name, proposals in self.undecided.items() if len(proposals) > 1}


class ClusterApi(MetadataLogApi, Protocol):
    """The metadata log (C4, C5), an agent's own calls (C8), and what all share: configs, the secret, commit shards.

    A report of settings counts for a minute after it was renewed.
    """

    async def register_agent(self, registration: AgentRegistration) -> RegisteredAgent:
        """Register fenced, under a broker epoch higher than any before. Idempotent by incarnation id.

        AlreadyExistsError while another incarnation holds the node id: until one session timeout after
        its last contact, and after an outage of the metastore until one session timeout has passed.
        WrongClusterError for another cluster's id; UnsupportedFeatureError when an active feature level
        is outside `registration.features`.
        """

    async def heartbeat(
        self,
        node_id: int,
        broker_epoch: int,
        *,
        metadata_offset: int,
        want_fence: bool,
        want_shut_down: bool = False,
        session_timeout_ms: int,
    ) -> HeartbeatAnswer:
        """Renew the lease; fence or unfence the agent, or begin its controlled shutdown, as it wants.

        `session_timeout_ms`: the length that is granted while the cluster has no value of broker.session.timeout.ms.
        The lease has the length that the answer says, from when this call was sent: until then no controller fences
        the agent for silence, and no other agent takes its node id.

        `metadata_offset`: of its image, the next offset that it has not applied. It is unfenced only when
        caught up. With `want_shut_down` it drops out of routing but may still commit; once every other
        live agent knows, the answer says that it may stop. FencedError for a stale epoch: register again.
        """

    async def unregister_agent(self, node_id: int, broker_epoch: int) -> None:
        """Leave at once (a clean stop). A stale epoch is ignored."""

    async def cluster_configs(self) -> dict[str, str]:
        """The cluster-wide broker configs: name -> value. O(configs of that kind)."""

    async def zone_secret(self) -> ZoneSecret:
        """32 bytes. InvalidError if it is sealed, and metadata.secret.keys lacks the key."""

    async def rotate_zone_secret(self) -> Rotation:
        """Take the next step, unless agents have to restart before it. Not idempotent."""

    async def seal_zone_secret(self, *, renew: bool) -> bool:
        """Seal it under the first key of metadata.secret.keys; False if that is so already. Idempotent.

        `renew`: a secret in clear is replaced by another one, in a cluster in which no agent has started.
        UnavailableError if it changed meanwhile.
        """

    async def count_commit_shards(self) -> int:
        """Return how many commit shards there are now."""

    async def grow_commit_shards(self, shards: int, expected_head: int) -> bool:
        """Make the commit shards so many; False if the metadata log has moved on, and nothing happened. Not idempotent.

        All writing calls of the cluster wait meanwhile: some 3 us per partition. UnavailableError if one that was
        under way took longer than half a second. Every registered agent must follow growth (COMMIT_SHARDS): the caller
        looks at the image of `expected_head`.
        """

    async def exchange_quota_use(self, node_id: int, report: str) -> Mapping[int, str]:
        """Store this agent's report; those of the others that are younger than 5 s, by node id. Idempotent."""

    async def report_settings(self, report: SettingReport) -> None:
        """Store or renew the report of one process. Idempotent."""

    async def withdraw_settings(self, incarnation_id: uuid.UUID) -> None:
        """Take the report back: the process stops. Idempotent."""

    async def setting_proposals(self) -> SettingProposals:
        """Return the proposals as of now; a few rows per process."""

    async def compactors_without(self, feature: str, level: int) -> tuple[str, ...]:
        """Running processes that compact, without a report that they support the level."""
