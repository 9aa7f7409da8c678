"""The cluster as a whole: its log, topics and agents, and what is the same for all of them.

Place: agent/cluster and agent/topics; background workers and the zone cache ask for the facts.
Invariant: the identity never changes in a cluster's life; the count of commit shards only grows.
"""

from __future__ import annotations

import uuid
from typing import Protocol

from headrace.metastore.api.agents import AgentApi
from headrace.metastore.api.metadata_log import MetadataLogApi
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.api.zone_secret import Rotation, ZoneSecret


class ClusterApi(MetadataLogApi, TopicApi, AgentApi, Protocol):
    """The metadata log and what is appended to it."""


class ConfigApi(Protocol):
    """Configs as of now."""

    async def cluster_configs(self) -> dict[str, str]:
        """The cluster-wide broker configs: name -> value. O(configs of that kind)."""


class ZoneSecretApi(Protocol):
    """What the metastore keeps for all agents of the cluster."""

    async def zone_secret(self) -> ZoneSecret:
        """32 bytes. InvalidError if it is sealed, and metadata.secret.keys lacks the key."""

    async def rotate_zone_secret(self) -> Rotation:
        """Take the next step, unless agents have to restart before it. Not idempotent."""

    async def seal_zone_secret(self, *, renew: bool) -> bool:
        """Seal it under the first key of metadata.secret.keys; False if that is so already. Idempotent.

        `renew`: a secret in clear is replaced by another one, in a cluster in which no agent has started.
        UnavailableError if it changed meanwhile.
        """


class ClusterFacts(Protocol):
    """What was read when the metastore was opened."""

    @property
    def cluster_id(self) -> str:
        """The id that `headrace storage format` wrote."""

    @property
    def incarnation_id(self) -> uuid.UUID:
        """Return which life of the metastore this is: another one after a restore."""

    @property
    def commit_shards(self) -> int:
        """How many commit shards there were (metastore/keys.py); an image says how many there are."""
