"""The cluster as a whole: its log and agents, and what is the same for all of them.

Place: under agent/cluster; background workers, the zone cache and commands ask for configs, settings and the secret.
Order: an agent registers, renews its lease by heartbeats, and leaves.
Locks: what appends records takes that of the log's head; a growth of the commit shards waits for all writing calls.
Invariant: the identity never changes in a cluster's life; the count of commit shards only grows, by doublings, between
two commits: no commit, swap or log start has the locks of one count and the feed of the other (docs/decisions/0077).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Protocol

from headrace.metastore.api.agents import AgentRegistration, HeartbeatAnswer, RegisteredAgent
from headrace.metastore.api.metadata_log import MetadataLogApi
from headrace.metastore.api.settings import SettingProposals, SettingReport
from headrace.metastore.api.zone_secret import Rotation, ZoneSecret


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
