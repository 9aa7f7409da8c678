"""Reads what a running cluster is, in the form in which files describe one.

Place: `headrace cluster plan` and `apply` compare its result with a description, `export` writes it.
Invariant: only reads. Internal topics and values that the cluster keeps secret are not part of the result.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.cli.client.acls import Acl, SecurityDisabledError, WantedAcls, list_acls
from headrace.cli.client.features import is_headrace, list_features
from headrace.cli.client.quotas import list_quotas
from headrace.cli.client.users import list_users
from headrace.cli.configs import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    describe_configs,
    describe_topics,
    names_with_configs,
)
from headrace.cli.described.state import ClusterAbilities, ClusterState, LinkConfigs, ObjectKind, TopicState, UserState
from headrace.config.link_configs import ACTIVE, LINK_NAME, OWN, STATE
from headrace.metastore.api.agents import CLUSTER_LINKS
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.protocol.link_requests import LinkOp, LinkRequest
from headrace.storage.errors import InvalidError

SET_FOR_TOPIC, SET_FOR_ALL_BROKERS, DEFAULT = 1, 3, 5
"""Kafka's ConfigSource of values that were set for the topic, for the whole cluster, or not at all."""
SET_FOR_NAMED = {GROUP: 8, CLIENT_METRICS: 7}
"""The same for a group and a subscription to client metrics."""
EVERYTHING = frozenset(ObjectKind)
_INTERNAL = re.compile(
    r"__(consumer_offsets|transaction_state|share_group_state|cluster_metadata|remote_log_metadata.*)"
)
"""Topics of Kafka and Headrace themselves, also where Metadata does not call them internal."""


class FoundCluster(NamedTuple):
    """A cluster and what it can do."""

    state: ClusterState
    facts: ClusterAbilities


def read_cluster(
    cluster: KafkaCluster,
    kinds: Collection[ObjectKind] = EVERYTHING,
    configs_of: Collection[str] | None = None,
    cluster_configs: Collection[str] = (),
) -> FoundCluster:
    """Return the cluster's objects of these kinds. `configs_of`: the topics with configs in the result (None: all).

    A cluster without an authorizer has no ACLs. `cluster_configs`: configs of the cluster that are in the result also
    with their default: Headrace does not list a value that was set and is the default.
    """
    has_links = any(each.feature == CLUSTER_LINKS for each in list_features(cluster)[1])
    topics, inherited = _topics(cluster, configs_of) if ObjectKind.TOPIC in kinds else ({}, {})
    has_acls = True
    acls: frozenset[Acl] = frozenset()
    if ObjectKind.ACL in kinds:
        try:
            acls = frozenset(list_acls(cluster, WantedAcls()))
        except SecurityDisabledError:
            has_acls = False
    users = list_users(cluster) if ObjectKind.USER in kinds else []
    found = describe_configs(cluster, (BROKER, "")) if ObjectKind.CONFIG in kinds else []
    of_cluster = [each for each in found if each.config_source == SET_FOR_ALL_BROKERS and not each.read_only]
    state = ClusterState(
        topics,
        acls,
        {(each.user, each.mechanism): UserState(each.iterations) for each in users},
        list_quotas(cluster) if ObjectKind.QUOTA in kinds else {},
        {
            **_defaults(cluster, set(cluster_configs) - {str(each.name) for each in found}),
            **{str(each.name): str(each.value or "") for each in of_cluster if not each.is_sensitive},
        },
        _links(cluster) if ObjectKind.LINK in kinds and has_links else {},
        _named_configs(cluster, GROUP) if ObjectKind.GROUP in kinds else {},
        _named_configs(cluster, CLIENT_METRICS) if ObjectKind.CLIENT_METRICS in kinds else {},
    )
    secret = frozenset(str(each.name) for each in found if each.is_sensitive)
    copies = _copies(cluster) if ObjectKind.TOPIC in kinds and has_links else frozenset()
    return FoundCluster(state, ClusterAbilities(is_headrace(cluster), has_acls, inherited, secret, has_links, copies))


def _named_configs(cluster: KafkaCluster, kind: int) -> dict[str, dict[str, str]]:
    """Return what each group or subscription was given."""
    found = {}
    for name in names_with_configs(cluster, kind) or ():
        configs = describe_configs(cluster, (kind, name))
        found[name] = {str(c.name): str(c.value) for c in configs if c.config_source == SET_FOR_NAMED[kind]}
    return {name: configs for name, configs in found.items() if configs}


def _copies(cluster: KafkaCluster) -> frozenset[str]:
    """The topics that links copy; none if the caller may not see links."""
    with contextlib.suppress(InvalidError):
        links = cluster.links(LinkRequest(op=LinkOp.LIST)).links
        shown = [cluster.links(LinkRequest(op=LinkOp.SHOW, link=link.name)).links for link in links]
        return frozenset(topic.name for (link,) in shown for topic in link.topics if topic.is_linked)
    return frozenset()


def _links(cluster: KafkaCluster) -> dict[str, LinkConfigs]:
    """The links, without what only the agents set."""
    found = cluster.links(LinkRequest(op=LinkOp.LIST)).links
    return {
        link.name: {
            name: value for name, value in link.configs.items() if name not in OWN and not _is_default(name, value)
        }
        for link in found
    }


def _is_default(name: str, value: str | None) -> bool:
    return name == STATE and value == ACTIVE


def _defaults(cluster: KafkaCluster, names: Collection[str]) -> dict[str, str]:
    """The values of those of these configs that have their default, as one broker shows them."""
    if not names:
        return {}
    found = describe_configs(cluster, (BROKER, str(cluster.nodes()[0])), sorted(names))
    return {
        str(each.name): str(each.value)
        for each in found
        if each.config_source == DEFAULT and not each.is_sensitive and each.value is not None
    }


def _topics(
    cluster: KafkaCluster, configs_of: Collection[str] | None
) -> tuple[dict[str, TopicState], dict[str, dict[str, str]]]:
    """The topics, and what each would inherit without configs that were set for it."""
    listed = {
        str(topic.name): topic.partitions
        for topic in cluster.metadata()
        if not getattr(topic, "is_internal", False) and not _INTERNAL.fullmatch(str(topic.name))
    }
    hidden = sorted(set(configs_of or ()) - listed.keys())
    for topic in cluster.named_topics(hidden) if hidden else ():
        if topic.error_code is not ErrorCode.unknown_topic_or_partition:  # a topic that the caller may not see
            require(topic.error_code, None, str(topic.name))
    shown = [name for name in listed if configs_of is None or name in configs_of]
    configs = describe_topics(cluster, shown)
    states = {}
    for name, partitions in listed.items():
        own = {str(c.name): str(c.value) for c in configs.get(name, ()) if c.config_source == SET_FOR_TOPIC}
        own.pop(LINK_NAME, None)  # of a copy: the link's, not the topic's
        factor = min((len(partition.replica_nodes) for partition in partitions), default=0)
        states[name] = TopicState(len(partitions), factor, own)
    return states, {name: _inherited(found) for name, found in configs.items()}


def _inherited(configs: Iterable[Any]) -> dict[str, str]:
    """The value of each config if it were not set for the topic: its first synonym of another source."""
    found = {}
    for config in configs:
        values = [s.value for s in config.synonyms if s.source != SET_FOR_TOPIC]
        if config.config_source != SET_FOR_TOPIC:
            values = [config.value]
        if values and values[0] is not None:
            found[str(config.name)] = str(values[0])
    return found
