"""Features of a cluster: the levels that it uses, and those that it supports.

Place: under `headrace features`.
Invariant: one request changes all named features or none (version 2 of UpdateFeatures; older brokers answer for each).
Source: KIP-584, KIP-1022.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import NamedTuple

from headrace import __version__
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Kafka's upgrade types."""
TIMEOUT = datetime.timedelta(seconds=30)
SOFTWARE = "headrace"
OWN_FEATURE = "metadata.format"
"""A feature that every Headrace has and no other Kafka cluster."""


class FeatureLevel(NamedTuple):
    """One feature: supported levels, and the level in use (None: not in use)."""

    feature: str
    min_level: int
    max_level: int
    level: int | None


def list_features(cluster: KafkaCluster) -> tuple[int, list[FeatureLevel]]:
    """Return the epoch of the levels, and the features by name."""
    m = cluster.message(ApiKey.API_VERSIONS)
    answer = cluster.ask(
        ApiKey.API_VERSIONS, m.request(client_software_name=SOFTWARE, client_software_version=__version__)
    )
    require(answer.error_code)
    used = {str(each.name): int(each.max_version_level) for each in answer.finalized_features}
    found = [
        FeatureLevel(str(each.name), int(each.min_version), int(each.max_version), used.get(str(each.name)))
        for each in answer.supported_features
    ]
    return int(answer.finalized_features_epoch), sorted(found)


def is_headrace(cluster: KafkaCluster) -> bool:
    """Return whether the cluster is a Headrace, which can also lower the number of a topic's partitions."""
    return any(each.feature == OWN_FEATURE for each in list_features(cluster)[1])


def update_features(
    cluster: KafkaCluster, levels: Mapping[str, int], upgrade_type: int, *, validate_only: bool = False
) -> None:
    """Set the levels; 0 disables a feature. Errors as `require`."""
    m = cluster.message(ApiKey.UPDATE_FEATURES)
    updates = tuple(
        m.make(
            "FeatureUpdateKey",
            feature=name,
            max_version_level=level,
            upgrade_type=upgrade_type,
            allow_downgrade=upgrade_type != UPGRADE,
        )
        for name, level in levels.items()
    )
    cluster.nodes()
    request = m.request(timeout=TIMEOUT, feature_updates=updates, validate_only=validate_only)
    answer = cluster.ask(ApiKey.UPDATE_FEATURES, request, cluster.controller)
    require(answer.error_code, answer.error_message)
    for result in getattr(answer, "results", ()):
        require(result.error_code, result.error_message, result.feature)
