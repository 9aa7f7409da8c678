"""The requests with an answer that grows with the cluster, or that may name thousands of groups and partitions, with
handlers that answer them from memory.

Place: under load/benchmarks/turns.py, and tests/agent/limits, which count the work between two turns of the event loop.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.access.admin.acls import DescribeAcls
from headrace.agent.access.admin.client_quotas import DescribeClientQuotas
from headrace.agent.cluster.requests.brokers import ListPartitionReassignments
from headrace.agent.groups.administration import GroupAdministration, ListGroups
from headrace.agent.groups.claims import NewGroups
from headrace.agent.groups.classic.coordinator import DescribeGroups
from headrace.agent.groups.group_memory import GroupMemory
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.groups.offsets.requests import OffsetFetch
from headrace.agent.topics.configs.change_requests import ListConfigResources
from headrace.agent.topics.configs.describe import DescribeConfigs
from headrace.agent.topics.metadata.routing_requests import GROUP, DescribeCluster, FindCoordinator
from headrace.agent.topics.partition_requests import DescribeLogDirs, DescribeProducers, ElectLeaders
from headrace.agent.transactions.tool_requests import DescribeTransactions, ListTransactions
from headrace.config.settings import Settings
from headrace.metastore.api.groups import CommittedOffset, GroupKind, GroupListing
from headrace.metastore.api.transactions import ProducerEpoch, Transaction, TransactionState
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import Assignment, MetadataImage
from headrace.metastore.log.kip631_records import AccessControlRecord, EntityData
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import ClientConnection, Request, RequestHandler
from headrace.protocol.typed import schema
from headrace.storage.clock import SystemClock
from headrace.storage.supervision import Supervisor
from load.workloads.image_view import ImageView


class Counts(NamedTuple):
    """What the cluster has besides topics and agents, and what a request names."""

    acls: int
    quotas: int
    groups: int
    transactions: int
    named: int
    """Partitions or ids in one request."""


class LongRequest(NamedTuple):
    """A request, and what answers it."""

    handler: RequestHandler
    request: Request


class _Store:
    """The metastore's reports, groups and transactions."""

    def __init__(self, image: MetadataImage, counts: Counts) -> None:
        keys = [topic.key(index) for topic in image.topics_by_name.values() for index in topic.indexes]
        self._offsets = [CommittedOffset(key, 7, 0, "") for key in keys if key is not None]
        names = (f"group-{number}" for number in range(counts.groups))
        self._groups = [GroupListing(name, GroupKind.CLASSIC, "Stable", "consumer") for name in names]
        self._transactions = [
            Transaction(
                transactional_id=f"id-{number}",
                producer=ProducerEpoch(number, 0),
                state=TransactionState.ONGOING,
                timeout_ms=1_000,
                begun_ms=1_000,
                partition_keys=frozenset(key for key in keys[:2] if key is not None),
            )
            for number in range(counts.transactions)
        ]

    async def partition_sizes(self, keys: Sequence[int]) -> list[int]:
        await asyncio.sleep(0)
        return [1_000] * len(keys)

    async def describe_producers(self, keys: Sequence[int]) -> list[list[Any]]:
        await asyncio.sleep(0)
        return [[] for _ in keys]

    async def list_groups(self, ids: Sequence[str] | None = None) -> list[GroupListing]:
        """None of those that are asked for is stored: no group is claimed."""
        await asyncio.sleep(0)
        return self._groups if ids is None else []

    async def find_transactions(self, ids: Sequence[str] | None = None) -> list[Transaction]:
        await asyncio.sleep(0)
        return self._transactions

    async def fetch(self, group_id: str, keys: Any, member: Any = None) -> list[CommittedOffset]:
        await asyncio.sleep(0)
        return self._offsets


class _OneAddress:
    """Clients see all agents as one."""

    def node(self, listener: str) -> Any:
        return self


def with_access(image: MetadataImage, counts: Counts) -> MetadataImage:
    """Return the image with ACLs and quotas."""
    acls = frozenset(
        AccessControlRecord(
            resource_type=2,
            resource_name=f"topic-{number}",
            pattern_type=3,
            principal="User:u",
            host="*",
            operation=3,
            permission_type=3,
        )
        for number in range(counts.acls)
    )
    users = ((EntityData(entity_type="user", entity_name=f"u{number}"),) for number in range(counts.quotas))
    quotas: dict[tuple[EntityData, ...], Mapping[str, float]] = {user: {"producer_byte_rate": 1.0} for user in users}
    return replace(image, access_controls=acls, quotas=MappingProxyType(quotas))


def with_reassignments(image: MetadataImage) -> MetadataImage:
    """Return an image in which all partitions are being reassigned."""
    moving = Assignment((2, 1), (2,), (1,))
    topics = [
        replace(topic, assignments=MappingProxyType(dict.fromkeys(topic.indexes, moving)))
        for topic in image.topics_by_name.values()
    ]
    return replace(
        image,
        topics_by_id=MappingProxyType({topic.topic_id: topic for topic in topics}),
        topics_by_name=MappingProxyType({topic.name: topic for topic in topics}),
        topics_by_number=MappingProxyType({topic.topic_number: topic for topic in topics}),
    )


def request_of(api_key: ApiKey, version: int, /, **values: Any) -> Request:
    """Return a request with these values, as the listener makes it."""
    found = schema(api_key, version)
    body = found.encode_request(found.request_type(**values))
    connection = ClientConnection(1, "client", request_elements_max=1 << 20)
    return Request(connection, api_key, version, 1, "client", body, 0.0)


def part_of(api_key: ApiKey, version: int, name: str, /, **values: Any) -> Any:
    """Return an entity in a request."""
    return getattr(schema(api_key, version)._request_module, name)(**values)


class LongRequests:
    """The requests to an agent that has the image of `view`."""

    def __init__(self, view: ImageView, counts: Counts) -> None:
        self._view, self._counts = view, counts
        self._store: Any = _Store(view.image, counts)

    def all(self) -> dict[str, Callable[[], LongRequest]]:
        """Return what makes each of them, by name."""
        return {
            "DescribeLogDirs of one address": lambda: self._log_dirs(_OneAddress()),
            "DescribeLogDirs": lambda: self._log_dirs(None),
            "ElectLeaders": self._elections,
            "ListConfigResources": self._resources,
            "ListPartitionReassignments": self._reassignments,
            "FindCoordinator of groups": lambda: self._coordinators(GROUP),
            "ListGroups": self._groups,
            "DescribeGroups": self._described_groups,
            "ListTransactions": self._transactions,
            "DescribeTransactions": self._described_transactions,
            "OffsetFetch of all topics": self._offsets,
            "OffsetFetch of many groups": self._offsets_of_groups,
            "DescribeAcls": self._acls,
            "DescribeClientQuotas": self._quotas,
            "DescribeProducers": self._producers,
        }

    def short(self) -> dict[str, Callable[[], LongRequest]]:
        """Return the same for answers that are made at once; long ones are only written in steps."""
        return {"DescribeCluster": self._cluster, "DescribeConfigs": self._configs}

    def _partitions(self) -> dict[str, tuple[int, ...]]:
        """Return the partitions that a request names, by topic."""
        found: dict[str, tuple[int, ...]] = {}
        left = self._counts.named
        for topic in self._view.image.topics_by_name.values():
            found[topic.name] = tuple(islice(topic.indexes, left))
            left -= len(found[topic.name])
            if not left:
                break
        return found

    def _ids(self, kind: str) -> tuple[str, ...]:
        return tuple(f"{kind}-{number}" for number in range(self._counts.named))

    def _log_dirs(self, shared: Any) -> LongRequest:
        handler = DescribeLogDirs(self._view, self._store, "s3://bucket", shared)
        return LongRequest(handler, request_of(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None))

    def _elections(self) -> LongRequest:
        asked = tuple(
            part_of(ApiKey.ELECT_LEADERS, 2, "TopicPartitions", topic=name, partitions=indexes)
            for name, indexes in self._partitions().items()
        )
        request = request_of(
            ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=asked, timeout=datetime.timedelta(seconds=1)
        )
        return LongRequest(ElectLeaders(self._view), request)

    def _resources(self) -> LongRequest:
        request = request_of(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=())
        return LongRequest(ListConfigResources(self._view), request)

    def _reassignments(self) -> LongRequest:
        moving = ImageView(with_reassignments(self._view.image), self._view.commit_shards)
        request = request_of(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
        return LongRequest(ListPartitionReassignments(moving), request)

    def _coordinators(self, key_type: int) -> LongRequest:
        request = request_of(ApiKey.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=self._ids("group"))
        return LongRequest(FindCoordinator(self._view, None), request)

    def _administration(self) -> GroupAdministration:
        registry = CollectorRegistry()
        memory = GroupMemory(1 << 40, 1 << 40, Counter("limits", "Not read.", registry=registry))
        metrics = GroupMetrics(registry)
        new_groups, clock = NewGroups(self._store, None), SystemClock()
        held = HeldGroups(new_groups, self._view, clock, {}, metrics, memory, Supervisor(clock))
        return GroupAdministration(self._store, held)

    def _groups(self) -> LongRequest:
        return LongRequest(ListGroups(self._administration()), request_of(ApiKey.LIST_GROUPS, 4, states_filter=()))

    def _described_groups(self) -> LongRequest:
        request = request_of(ApiKey.DESCRIBE_GROUPS, 5, groups=self._ids("group"), include_authorized_operations=False)
        return LongRequest(DescribeGroups(self._administration()), request)

    def _transactions(self) -> LongRequest:
        request = request_of(ApiKey.LIST_TRANSACTIONS, 1, state_filters=(), producer_id_filters=(), duration_filter=-1)
        return LongRequest(ListTransactions(self._view, self._store, lambda: 5_000, None), request)

    def _described_transactions(self) -> LongRequest:
        request = request_of(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=self._ids("id"))
        return LongRequest(DescribeTransactions(self._view, self._store, None), request)

    def _offsets(self) -> LongRequest:
        return self._offsets_of(["group"])

    def _offsets_of_groups(self) -> LongRequest:
        """Most of them are other agents'; the store has no offsets."""
        found = self._offsets_of(self._ids("group"))
        return found._replace(handler=OffsetFetch(_NoOffsets(), self._view))  # type: ignore[arg-type]

    def _offsets_of(self, ids: Sequence[str]) -> LongRequest:
        key = ApiKey.OFFSET_FETCH
        groups = tuple(part_of(key, 8, "OffsetFetchRequestGroup", group_id=name, topics=None) for name in ids)
        return LongRequest(
            OffsetFetch(self._store, self._view), request_of(key, 8, groups=groups, require_stable=False)
        )

    def _acls(self) -> LongRequest:
        request = request_of(
            ApiKey.DESCRIBE_ACLS,
            3,
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        return LongRequest(DescribeAcls(self._view), request)

    def _quotas(self) -> LongRequest:
        request = request_of(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=(), strict=False)
        return LongRequest(DescribeClientQuotas(self._view), request)

    def _producers(self) -> LongRequest:
        asked = tuple(
            part_of(ApiKey.DESCRIBE_PRODUCERS, 0, "TopicRequest", name=name, partition_indexes=indexes)
            for name, indexes in self._partitions().items()
        )
        request = request_of(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked)
        return LongRequest(DescribeProducers(self._view, self._store), request)

    def _cluster(self) -> LongRequest:
        request = request_of(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=1)
        return LongRequest(DescribeCluster(self._view, None), request)

    def _configs(self) -> LongRequest:
        key, topics = ApiKey.DESCRIBE_CONFIGS, islice(self._view.image.topics_by_name, self._counts.named // 10)
        asked = tuple(
            part_of(key, 4, "DescribeConfigsResource", resource_type=2, resource_name=name, configuration_keys=None)
            for name in topics
        )
        request = request_of(key, 4, resources=asked, include_synonyms=True, include_documentation=True)
        return LongRequest(DescribeConfigs(self._view, EffectiveConfigs(Settings())), request)


class _NoOffsets:
    """Groups that have committed nothing."""

    async def fetch(self, group_id: str, keys: Any, member: Any = None) -> list[CommittedOffset]:
        return []
