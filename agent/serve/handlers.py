"""The APIs of an agent: a row for each (agent/apis/api_row.py), those about groups, access and controllers in their
folders.

Place: agent/serve/paths.py registers them once. A new API is a row in protocol/api_versions.py and a row here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.access import audited_changes
from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.quotas.mutations import MutationQuotas
from headrace.agent.apis import cluster, configs, groups, own_requests, topics, transactions
from headrace.agent.apis.access import ACCESS_ROWS, AccessParts
from headrace.agent.apis.api_row import ApiRow, register_rows, routes_of, unadvertised
from headrace.agent.apis.controllers import CONTROLLER_ROWS, ControllerParts
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.cluster.newest_counts import NewestCounts
from headrace.agent.cluster.requests.broker_lifecycle import UnregisterBroker
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone_traffic import ZoneTraffic
from headrace.agent.fetch.allowed_topics import AllowedTopics
from headrace.agent.fetch.offsets.offset_for_leader_epoch import OffsetForLeaderEpoch
from headrace.agent.fetch.service import FetchService
from headrace.agent.fetch.share.handlers import ShareHandlers
from headrace.agent.fetch.share.sessions import ShareSessions
from headrace.agent.limits.client_rows import RowLimits
from headrace.agent.limits.refusal_log import RefusalLog
from headrace.agent.peers.channel import SHARE_TURN_KEY, ZONE_CACHE_KEY
from headrace.agent.peers.forwarding.routes import of_brokers
from headrace.agent.peers.forwarding.service import ForwardService
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.agent.serve.group_handlers import GROUP_ROWS, GroupHandlers
from headrace.agent.serve.share_asking import AskShareOwner
from headrace.agent.topics.configs.alter import AlterConfigs, IncrementalAlterConfigs
from headrace.agent.topics.configs.describe import DescribeConfigs
from headrace.agent.topics.configs.list_resources import ListConfigResources
from headrace.agent.topics.counts.count_changes import PartitionCounts
from headrace.agent.topics.counts.create_partitions import CreatePartitions
from headrace.agent.topics.counts.scale_topic import ScaleTopic
from headrace.agent.topics.counts.set_partition_count import SetPartitionCount
from headrace.agent.topics.counts.topic_doubling import TopicDoubling
from headrace.agent.topics.counts.topic_halving import TopicHalving
from headrace.agent.topics.create_topics import CreateTopics
from headrace.agent.topics.delete_records import DeleteRecords
from headrace.agent.topics.delete_topics import DeleteTopics
from headrace.agent.topics.describe_log_dirs import DescribeLogDirs
from headrace.agent.topics.describe_producers import DescribeProducers
from headrace.agent.topics.elect_leaders import ElectLeaders
from headrace.agent.topics.metadata.describe_cluster import DescribeCluster
from headrace.agent.topics.metadata.describe_topic_partitions import DescribeTopicPartitions
from headrace.agent.topics.metadata.find_coordinator import FindCoordinator
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.metadata.metadata_counts import CountsOfTopics
from headrace.agent.topics.metadata.partition_leader_epochs import PartitionLeaderEpochs
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.agent.transactions.add_request import AddOffsetsToTxn, AddPartitionsToTxn
from headrace.agent.transactions.end_request import EndTxn
from headrace.agent.transactions.init_producer_id import InitProducerId
from headrace.agent.transactions.list_request import DescribeTransactions, ListTransactions
from headrace.agent.transactions.markers_request import WriteTxnMarkers
from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.sealed_keys import SealedKeys
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import CONTROLLER_ONLY
from headrace.protocol.ordered_requests import LEADER_EPOCHS_KEY
from headrace.protocol.request import RequestHandler
from headrace.protocol.scale_topic import SCALE_TOPIC_KEY
from headrace.protocol.set_partition_count import SET_PARTITION_COUNT_KEY
from headrace.storage.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerParts:
    """What handlers work with: one agent's."""

    settings: Settings
    clock: Clock
    rng: random.Random
    cluster: ClusterView
    metastore: Metastore
    produce: ProducePipeline
    fetch: FetchService
    groups: GroupHandlers
    forward: ForwardService
    shared: SharedAddress
    traffic: ZoneTraffic
    is_active_controller: Callable[[], bool]
    registry: CollectorRegistry
    limits_reached: Counter
    audit: AuditLog
    mutations: MutationQuotas
    sealed_keys: SealedKeys
    authorizer: Authorizer
    may_be_behind: Callable[[], bool]
    rows: RowLimits

    def on_limit(self, setting: str) -> None:
        """Count a request that a limit refused."""
        self.limits_reached.labels(setting).inc()


def register_handlers(dispatcher: Dispatcher, parts: HandlerParts) -> dict[str, Callable[[], float]]:
    """Fill the dispatcher's table. Each handler is behind the rule of its API, and its changes are in the audit log.

    Bytes by part of the memory budget that handlers remember.
    """
    made = _BrokerParts(parts)
    register_rows(dispatcher, ROWS, made, parts.authorizer, parts.audit, parts.forward.wrap)
    parts.groups.share_owner.logs = parts.fetch.share_logs
    dispatcher.register_unadvertised(SHARE_TURN_KEY, parts.groups.share_owner.handle)
    for api_key, handler in parts.forward.serve((*routes_of(ROWS), SHARE_TURN_KEY)).items():
        dispatcher.register_unadvertised(api_key, handler)
    if parts.fetch.zone_cache is not None:
        dispatcher.register_unadvertised(ZONE_CACHE_KEY, parts.fetch.zone_cache.handle)
    return {
        "metadata_answers": lambda: made.metadata.in_use_bytes,
        "share_sessions": lambda: made.share.sessions_bytes,
    }


class _BrokerParts:
    """The parts, and what several handlers have in common."""

    def __init__(self, parts: HandlerParts) -> None:
        self.parts = parts
        self.cluster, self.metastore, self.shared, self.clock = (
            parts.cluster, parts.metastore, parts.shared, parts.clock,
        )  # fmt: skip
        self.enforced = parts.authorizer.enforced
        self.configs = EffectiveConfigs(parts.settings)
        self.in_force = SettingsInForce(parts.settings, lambda: parts.cluster.image)
        self.creation = TopicCreation(
            parts.cluster,
            parts.metastore,
            parts.clock,
            parts.rng,
            lambda: TopicDefaults.of(self.in_force.current()),
            parts.on_limit,
        )
        self.counts = PartitionCounts(
            parts.cluster, parts.metastore, parts.clock, self.creation.defaults, parts.on_limit
        )
        self.producer_ids = ProducerIds(parts.metastore, parts.clock)
        self.refused = RefusalLog().refused
        self.controller = ControllerParts(
            parts.metastore,
            parts.cluster,
            parts.settings,
            parts.clock,
            parts.is_active_controller,
            shared=parts.shared,
        )
        self.change = self.controller.change
        self.access = AccessParts(
            *(self.change, parts.rng, self.in_force, parts.sealed_keys, self.enforced, parts.on_limit)
        )
        self.metadata = _metadata(self)
        self.share = _share(self)


def _metadata(of: _BrokerParts) -> Metadata:
    return Metadata(
        of.cluster,
        of.creation,
        lambda: of.in_force.current().auto_create_topics_enable,
        of.shared,
        CountsOfTopics(of.configs),
        of.refused,
        of.enforced,
        NewestCounts(of.cluster, of.clock, of.parts.may_be_behind),
    )


def _share(of: _BrokerParts) -> ShareHandlers:
    most = of.in_force
    sessions = ShareSessions(lambda: most.current().group_share_max_share_sessions, on_limit=of.parts.on_limit)
    sessions.watch(of.parts.registry)
    return ShareHandlers(
        of.cluster,
        sessions,
        of.parts.fetch.share_reader,
        AskShareOwner(of.cluster, of.parts.forward.links, of.parts.groups.share_owner),
        of.clock,
        None if of.enforced is None else AllowedTopics(of.enforced, of.cluster),
    )


def _init_producer_id(of: _BrokerParts) -> RequestHandler:
    return InitProducerId(
        of.producer_ids,
        of.cluster,
        of.metastore,
        lambda: of.in_force.current().transaction_max_timeout_ms,
        of.refused,
        of.parts.fetch.on_ended,
        of.parts.rows,
    )


def _scale_topic(of: _BrokerParts) -> RequestHandler:
    return ScaleTopic(
        TopicDoubling(of.cluster, of.metastore, of.clock),
        TopicHalving(of.cluster, of.metastore, of.clock, of.configs, of.in_force.current),
    )


_RECORDS: dict[int, ApiRow[_BrokerParts]] = {
    ApiKey.PRODUCE: ApiRow(lambda of: of.parts.traffic.counted_produce(of.parts.produce.handle), topics.PRODUCE),
    ApiKey.FETCH: ApiRow(lambda of: of.parts.fetch.handle_fetch, topics.FETCH),
    ApiKey.SHARE_FETCH: ApiRow(lambda of: of.share.fetch, groups.SHARE_FETCH),
    ApiKey.SHARE_ACKNOWLEDGE: ApiRow(lambda of: of.share.acknowledge, groups.SHARE_FETCH),
    ApiKey.LIST_OFFSETS: ApiRow(lambda of: of.parts.fetch.handle_list_offsets, topics.LIST_OFFSETS),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiRow(
        lambda of: OffsetForLeaderEpoch(of.cluster, of.metastore), topics.OFFSET_FOR_LEADER_EPOCH
    ),
}
"""What producers and consumers call all the time."""

_TOPICS: dict[int, ApiRow[_BrokerParts]] = {
    ApiKey.METADATA: ApiRow(lambda of: of.metadata, topics.METADATA),
    ApiKey.CREATE_TOPICS: ApiRow(
        lambda of: CreateTopics(of.creation, of.configs, of.parts.mutations),
        topics.CREATE_TOPICS,
        audited_changes.topics,
    ),
    ApiKey.DELETE_TOPICS: ApiRow(
        lambda of: DeleteTopics(of.cluster, of.metastore, of.clock, of.parts.mutations),
        topics.DELETE_TOPICS,
        audited_changes.deleted_topics,
    ),
    ApiKey.DELETE_RECORDS: ApiRow(
        lambda of: DeleteRecords(of.cluster, of.metastore, of.configs, of.parts.fetch.before_log_starts_move),
        topics.DELETE_RECORDS,
        audited_changes.deleted_records,
    ),
    ApiKey.DESCRIBE_LOG_DIRS: ApiRow(
        lambda of: DescribeLogDirs(of.cluster, of.metastore, of.parts.settings.bucket, of.shared),
        cluster.DESCRIBE_LOG_DIRS,
    ),
    ApiKey.DESCRIBE_PRODUCERS: ApiRow(
        lambda of: DescribeProducers(of.cluster, of.metastore), topics.DESCRIBE_PRODUCERS
    ),
    ApiKey.CREATE_PARTITIONS: ApiRow(
        lambda of: CreatePartitions(of.counts, of.parts.mutations),
        topics.CREATE_PARTITIONS,
        audited_changes.partitions,
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiRow(
        lambda of: DescribeTopicPartitions(of.cluster, of.shared, of.enforced), topics.DESCRIBE_TOPIC_PARTITIONS
    ),
    ApiKey.ELECT_LEADERS: ApiRow(lambda of: ElectLeaders(of.cluster), cluster.ELECT_LEADERS, audited_changes.elections),
    ApiKey.FIND_COORDINATOR: ApiRow(
        lambda of: FindCoordinator(of.cluster, of.shared, of.refused), groups.FIND_COORDINATOR
    ),
    LEADER_EPOCHS_KEY: ApiRow(
        lambda of: PartitionLeaderEpochs(of.cluster), own_requests.LEADER_EPOCHS, is_advertised=False
    ),
    SET_PARTITION_COUNT_KEY: ApiRow(
        lambda of: SetPartitionCount(of.counts),
        own_requests.SET_PARTITION_COUNT,
        audited_changes.partition_count,
        is_advertised=False,
    ),
    SCALE_TOPIC_KEY: ApiRow(_scale_topic, own_requests.SCALE_TOPIC, audited_changes.scaled, is_advertised=False),
}

_TRANSACTIONS: dict[int, ApiRow[_BrokerParts]] = {
    ApiKey.INIT_PRODUCER_ID: ApiRow(_init_producer_id, cluster.INIT_PRODUCER_ID),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiRow(
        lambda of: AddPartitionsToTxn(of.cluster, of.metastore), transactions.ADD_PARTITIONS_TO_TXN
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiRow(
        lambda of: AddOffsetsToTxn(of.metastore, of.metastore.list_groups), transactions.ADD_OFFSETS_TO_TXN
    ),
    ApiKey.END_TXN: ApiRow(
        lambda of: EndTxn(of.metastore, of.producer_ids, of.parts.fetch.on_ended, of.parts.registry),
        transactions.END_TXN,
    ),
    ApiKey.WRITE_TXN_MARKERS: ApiRow(
        lambda of: WriteTxnMarkers(of.cluster, of.metastore, of.parts.fetch.on_ended),
        transactions.WRITE_TXN_MARKERS,
        audited_changes.written_markers,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiRow(
        lambda of: DescribeTransactions(of.cluster, of.metastore, of.enforced), transactions.DESCRIBE_TRANSACTIONS
    ),
    ApiKey.LIST_TRANSACTIONS: ApiRow(
        lambda of: ListTransactions(of.cluster, of.metastore, of.parts.fetch.database_now_ms, of.shared),
        transactions.LIST_TRANSACTIONS,
    ),
}
"""What producers ask before they write, and what tools ask about them."""

_CONFIGS: dict[int, ApiRow[_BrokerParts]] = {
    ApiKey.DESCRIBE_CONFIGS: ApiRow(
        lambda of: DescribeConfigs(of.cluster, of.configs, lambda: of.shared.is_set),
        configs.DESCRIBE_CONFIGS,
        route=of_brokers("results"),
    ),
    ApiKey.ALTER_CONFIGS: ApiRow(
        lambda of: AlterConfigs(of.change, of.configs), configs.ALTER, audited_changes.configs
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiRow(
        lambda of: IncrementalAlterConfigs(of.change, of.configs),
        configs.ALTER,
        audited_changes.configs,
        of_brokers("responses"),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: ApiRow(lambda of: ListConfigResources(of.cluster), configs.LIST_CONFIG_RESOURCES),
    ApiKey.DESCRIBE_CLUSTER: ApiRow(lambda of: DescribeCluster(of.cluster, of.shared), cluster.DESCRIBE_CLUSTER),
}


def _controller(of: _BrokerParts) -> ControllerParts:
    return of.controller


_OF_CONTROLLERS: dict[int, ApiRow[_BrokerParts]] = {
    **{key: row.of(_controller) for key, row in CONTROLLER_ROWS.items() if key not in CONTROLLER_ONLY},
    ApiKey.UNREGISTER_BROKER: ApiRow(  # where Kafka's brokers forward it
        lambda of: UnregisterBroker(of.cluster, of.metastore), cluster.ALTER, audited_changes.broker
    ),
    ApiKey.FETCH_SNAPSHOT: unadvertised(CONTROLLER_ROWS[ApiKey.FETCH_SNAPSHOT].of(_controller)),
}

ROWS: dict[int, ApiRow[_BrokerParts]] = {
    **_RECORDS,
    **_TOPICS,
    **_TRANSACTIONS,
    **_CONFIGS,
    **{api_key: row.of(lambda of: of.access) for api_key, row in ACCESS_ROWS.items()},
    **_OF_CONTROLLERS,
    **{api_key: row.of(lambda of: of.parts.groups) for api_key, row in GROUP_ROWS.items()},
}
"""Every API that a broker's listeners serve, but those that come before a principal is known."""
