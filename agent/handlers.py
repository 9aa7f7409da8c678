"""The handlers of an agent by API: all APIs on one page.

Place: called once by agent/broker.py; a new API is a new line here.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from prometheus_client import Counter

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
from headrace.agent.admin.find_coordinator import FindCoordinator
from headrace.agent.admin.init_producer_id import InitProducerId, ProducerIds
from headrace.agent.admin.log_change import LogChange
from headrace.agent.admin.metadata import Metadata
from headrace.agent.admin.partition_counts import PartitionCounts
from headrace.agent.admin.partition_leader_epochs import PartitionLeaderEpochs
from headrace.agent.admin.set_partition_count import SetPartitionCount
from headrace.agent.admin.topic_counts import CountsOfTopics
from headrace.agent.admin.topic_creation import TopicCreation
from headrace.agent.admin.topic_rules import TopicDefaults
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone_traffic import ZoneTraffic
from headrace.agent.controller_endpoint import MEMBERSHIP, controller_handlers
from headrace.agent.dispatch import Dispatcher
from headrace.agent.fetch.offset_for_leader_epoch import OffsetForLeaderEpoch
from headrace.agent.fetch.service import FetchService
from headrace.agent.fetch.zone_cache.wire import API_KEY as ZONE_CACHE_KEY
from headrace.agent.forward.service import ForwardService
from headrace.agent.groups.handlers import GroupHandlers
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.ordered_requests import GROUP_POSITION_KEY, LEADER_EPOCHS_KEY
from headrace.protocol.request import RequestHandler
from headrace.protocol.set_partition_count import SET_PARTITION_COUNT_KEY
from headrace.storage.clock import Clock


def register_handlers(
    dispatcher: Dispatcher,
    *,
    settings: Settings,
    clock: Clock,
    rng: random.Random,
    cluster: ClusterView,
    metastore: Metastore,
    produce: ProducePipeline,
    fetch: FetchService,
    groups: GroupHandlers,
    forward: ForwardService,
    shared: SharedAddress,
    traffic: ZoneTraffic,
    is_active_controller: Callable[[], bool],
    limits_reached: Counter,
) -> None:
    """Fill the dispatcher's table."""
    configs, in_force = EffectiveConfigs(settings), SettingsInForce(settings, lambda: cluster.image)

    def on_limit(setting: str) -> None:
        limits_reached.labels(setting).inc()

    creation = TopicCreation(cluster, metastore, clock, rng, lambda: TopicDefaults.of(in_force.current()), on_limit)
    counts = PartitionCounts(cluster, metastore, clock, creation.defaults, on_limit)
    table: dict[int, RequestHandler] = {
        ApiKey.PRODUCE: traffic.counted_produce(produce.handle),
        ApiKey.FETCH: fetch.handle_fetch,
        ApiKey.LIST_OFFSETS: fetch.handle_list_offsets,
        ApiKey.METADATA: Metadata(
            cluster, creation, lambda: in_force.current().auto_create_topics_enable, shared, CountsOfTopics(configs)
        ),
        ApiKey.CREATE_TOPICS: CreateTopics(creation, configs),
        ApiKey.DELETE_TOPICS: DeleteTopics(cluster, metastore, clock),
        ApiKey.DELETE_RECORDS: DeleteRecords(cluster, metastore, configs, fetch.before_log_starts_move),
        ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirs(cluster, metastore, settings.bucket, shared),
        ApiKey.DESCRIBE_PRODUCERS: DescribeProducers(cluster, metastore),
        ApiKey.CREATE_PARTITIONS: CreatePartitions(counts),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitions(cluster, shared),
        ApiKey.ELECT_LEADERS: ElectLeaders(cluster),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpoch(cluster, metastore),
        **config_handlers(LogChange(cluster, metastore, clock), configs, lambda: shared.is_set),
        ApiKey.DESCRIBE_CLUSTER: DescribeCluster(cluster, shared),
        **access_handlers(LogChange(cluster, metastore, clock), rng, in_force),
        **{
            api_key: handler
            for api_key, handler in controller_handlers(
                metastore, cluster, settings, clock, is_active_controller
            ).items()
            if api_key not in MEMBERSHIP
        },
        ApiKey.UNREGISTER_BROKER: UnregisterBroker(cluster, metastore),  # where Kafka's brokers forward it
        ApiKey.FIND_COORDINATOR: FindCoordinator(cluster, shared),
        ApiKey.INIT_PRODUCER_ID: InitProducerId(ProducerIds(metastore, clock)),
    }
    for api_key, handler in (table | groups.handlers).items():
        dispatcher.register(api_key, forward.wrap(api_key, handler))
    forward.register(dispatcher)
    dispatcher.register_unadvertised(GROUP_POSITION_KEY, forward.wrap(GROUP_POSITION_KEY, groups.position))
    dispatcher.register_unadvertised(LEADER_EPOCHS_KEY, PartitionLeaderEpochs(cluster))
    dispatcher.register_unadvertised(SET_PARTITION_COUNT_KEY, SetPartitionCount(counts))
    if fetch.zone_cache is not None:
        dispatcher.register_unadvertised(ZONE_CACHE_KEY, fetch.zone_cache.handle)
