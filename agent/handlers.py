"""The handlers of an agent by API: all APIs on one page.

Place: called once by agent/paths.py; a new API is a new line here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.admin.access.handlers import access_handlers
from headrace.agent.admin.broker_lifecycle import UnregisterBroker
from headrace.agent.admin.configs.handlers import config_handlers
from headrace.agent.admin.create_partitions import CreatePartitions
from headrace.agent.admin.create_topics import CreateTopics
from headrace.agent.admin.delete_records import DeleteRecords
from headrace.agent.admin.delete_topics import DeleteTopics
from headrace.agent.admin.describe_cluster import DescribeCluster
from headrace.agent.admin.describe_log_dirs import DescribeLogDirs
from headrace.agent.admin.describe_producers import DescribeProducers
from headrace.agent.admin.describe_topic_partitions import DescribeTopicPartitions
from headrace.agent.admin.elect_leaders import ElectLeaders
from headrace.agent.admin.fetch_snapshot import FetchSnapshot
from headrace.agent.admin.find_coordinator import FindCoordinator
from headrace.agent.admin.log_change import LogChange
from headrace.agent.admin.metadata import Metadata
from headrace.agent.admin.partition_counts import PartitionCounts
from headrace.agent.admin.partition_leader_epochs import PartitionLeaderEpochs
from headrace.agent.admin.scale_topic import ScaleTopic
from headrace.agent.admin.set_partition_count import SetPartitionCount
from headrace.agent.admin.topic_counts import CountsOfTopics
from headrace.agent.admin.topic_creation import TopicCreation
from headrace.agent.admin.topic_doubling import TopicDoubling
from headrace.agent.admin.topic_halving import TopicHalving
from headrace.agent.admin.topic_rules import TopicDefaults
from headrace.agent.client_rows import RowLimits
from headrace.agent.cluster.newest_counts import NewestCounts
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone_traffic import ZoneTraffic
from headrace.agent.controller_endpoint import controller_handlers
from headrace.agent.dispatch import Dispatcher
from headrace.agent.fetch.offset_for_leader_epoch import OffsetForLeaderEpoch
from headrace.agent.fetch.service import FetchService
from headrace.agent.fetch.zone_cache.wire import API_KEY as ZONE_CACHE_KEY
from headrace.agent.forward.service import ForwardService
from headrace.agent.groups.handlers import GroupHandlers
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.agent.quotas.mutations import MutationQuotas
from headrace.agent.refusal_log import RefusalLog
from headrace.agent.security.audit import AuditLog
from headrace.agent.security.audited_changes import audited
from headrace.agent.security.authorization.authorizer import Authorizer
from headrace.agent.security.authorization.gate import gate
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
from headrace.protocol.ordered_requests import GROUP_POSITION_KEY, LEADER_EPOCHS_KEY
from headrace.protocol.request import RequestHandler
from headrace.protocol.scale_topic import SCALE_TOPIC_KEY
from headrace.protocol.set_partition_count import SET_PARTITION_COUNT_KEY
from headrace.storage.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
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


def register_handlers(dispatcher: Dispatcher, parts: Parts) -> dict[str, Callable[[], float]]:
    """Fill the dispatcher's table. Each handler is behind the rule of its API, and its changes are in the audit log.

    Bytes by part of the memory budget that handlers remember.
    """
    configs = EffectiveConfigs(parts.settings)
    in_force = SettingsInForce(parts.settings, lambda: parts.cluster.image)
    creation = TopicCreation(
        parts.cluster,
        parts.metastore,
        parts.clock,
        parts.rng,
        lambda: TopicDefaults.of(in_force.current()),
        parts.on_limit,
    )
    counts = PartitionCounts(parts.cluster, parts.metastore, parts.clock, creation.defaults, parts.on_limit)
    unadvertised = _unadvertised(parts, configs, in_force, counts)
    refusals = RefusalLog()
    metadata = _metadata(parts, configs, in_force, creation, refusals)
    advertised: dict[int, RequestHandler] = {
        **_records(parts),
        ApiKey.METADATA: metadata,
        **_topics(parts, configs, creation, counts, refusals),
        **_transactions(parts, in_force, refusals),
        **_cluster(parts, configs, in_force),
        **parts.groups.handlers,
    }
    for api_key, handler in (advertised | unadvertised).items():
        register = dispatcher.register_unadvertised if api_key in unadvertised else dispatcher.register
        served = audited(api_key, parts.forward.wrap(api_key, handler), parts.audit)
        register(api_key, gate(parts.authorizer, api_key, served))
    parts.forward.register(dispatcher)
    if parts.fetch.zone_cache is not None:
        dispatcher.register_unadvertised(ZONE_CACHE_KEY, parts.fetch.zone_cache.handle)
    return {"metadata_answers": lambda: metadata.in_use_bytes}


def _records(parts: Parts) -> dict[int, RequestHandler]:
    """What producers and consumers call all the time."""
    return {
        ApiKey.PRODUCE: parts.traffic.counted_produce(parts.produce.handle),
        ApiKey.FETCH: parts.fetch.handle_fetch,
        ApiKey.LIST_OFFSETS: parts.fetch.handle_list_offsets,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpoch(parts.cluster, parts.metastore),
    }


def _metadata(
    parts: Parts,
    configs: EffectiveConfigs,
    in_force: SettingsInForce,
    creation: TopicCreation,
    refusals: RefusalLog,
) -> Metadata:
    return Metadata(
        parts.cluster,
        creation,
        lambda: in_force.current().auto_create_topics_enable,
        parts.shared,
        CountsOfTopics(configs),
        refusals.refused,
        parts.authorizer.enforced,
        NewestCounts(parts.cluster, parts.clock, parts.may_be_behind),
    )


def _topics(
    parts: Parts,
    configs: EffectiveConfigs,
    creation: TopicCreation,
    counts: PartitionCounts,
    refusals: RefusalLog,
) -> dict[int, RequestHandler]:
    cluster, metastore, shared, enforced = parts.cluster, parts.metastore, parts.shared, parts.authorizer.enforced
    return {
        ApiKey.CREATE_TOPICS: CreateTopics(creation, configs, parts.mutations),
        ApiKey.DELETE_TOPICS: DeleteTopics(cluster, metastore, parts.clock, parts.mutations),
        ApiKey.DELETE_RECORDS: DeleteRecords(cluster, metastore, configs, parts.fetch.before_log_starts_move),
        ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirs(cluster, metastore, parts.settings.bucket, shared),
        ApiKey.DESCRIBE_PRODUCERS: DescribeProducers(cluster, metastore),
        ApiKey.CREATE_PARTITIONS: CreatePartitions(counts, parts.mutations),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitions(cluster, shared, enforced),
        ApiKey.ELECT_LEADERS: ElectLeaders(cluster),
        ApiKey.FIND_COORDINATOR: FindCoordinator(cluster, shared, refusals.refused),
    }


def _transactions(parts: Parts, in_force: SettingsInForce, refusals: RefusalLog) -> dict[int, RequestHandler]:
    """What producers ask before they write, and what tools ask about them."""
    cluster, metastore, on_ended = parts.cluster, parts.metastore, parts.fetch.on_ended
    producer_ids = ProducerIds(metastore, parts.clock)
    return {
        ApiKey.INIT_PRODUCER_ID: InitProducerId(
            producer_ids,
            cluster,
            metastore,
            lambda: in_force.current().transaction_max_timeout_ms,
            refusals.refused,
            on_ended,
            parts.rows,
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxn(cluster, metastore),
        ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxn(metastore, metastore.list_groups),
        ApiKey.END_TXN: EndTxn(metastore, producer_ids, on_ended, parts.registry),
        ApiKey.WRITE_TXN_MARKERS: WriteTxnMarkers(cluster, metastore, on_ended),
        ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactions(cluster, metastore, parts.authorizer.enforced),
        ApiKey.LIST_TRANSACTIONS: ListTransactions(cluster, metastore, parts.fetch.database_now_ms, parts.shared),
    }


def _cluster(parts: Parts, configs: EffectiveConfigs, in_force: SettingsInForce) -> dict[int, RequestHandler]:
    """Configs, access, and what a controller serves, too."""
    cluster, metastore, shared = parts.cluster, parts.metastore, parts.shared
    change = LogChange(cluster, metastore, parts.clock)
    of_controllers = controller_handlers(metastore, cluster, parts.settings, parts.clock, parts.is_active_controller)
    return {
        **config_handlers(change, configs, lambda: shared.is_set),
        ApiKey.DESCRIBE_CLUSTER: DescribeCluster(cluster, shared),
        **access_handlers(change, parts.rng, in_force, parts.sealed_keys, parts.authorizer.enforced, parts.on_limit),
        **{api_key: handler for api_key, handler in of_controllers.items() if api_key not in CONTROLLER_ONLY},
        ApiKey.UNREGISTER_BROKER: UnregisterBroker(cluster, metastore),  # where Kafka's brokers forward it
    }


def _unadvertised(
    parts: Parts, configs: EffectiveConfigs, in_force: SettingsInForce, counts: PartitionCounts
) -> dict[int, RequestHandler]:
    """What `headrace` and headrace.client ask, and no other client."""
    cluster, metastore, clock = parts.cluster, parts.metastore, parts.clock
    return {
        ApiKey.FETCH_SNAPSHOT: FetchSnapshot(metastore),
        GROUP_POSITION_KEY: parts.groups.position,
        LEADER_EPOCHS_KEY: PartitionLeaderEpochs(cluster),
        SET_PARTITION_COUNT_KEY: SetPartitionCount(counts),
        SCALE_TOPIC_KEY: ScaleTopic(
            TopicDoubling(cluster, metastore, clock),
            TopicHalving(cluster, metastore, clock, configs, in_force.current),
        ),
    }
