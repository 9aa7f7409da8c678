"""Which handler serves which API: the whole surface of an agent on one page.

Place: called once by agent/process.py; a new API is a new line here.
"""

from __future__ import annotations

import random

from agent.admin.broker_lifecycle import BrokerHeartbeat, BrokerRegistration, ControllerGate, UnregisterBroker
from agent.admin.create_topics import CreateTopics
from agent.admin.delete_topics import DeleteTopics
from agent.admin.describe_cluster import DescribeCluster
from agent.admin.describe_quorum import DescribeQuorum
from agent.admin.find_coordinator import FindCoordinator
from agent.admin.init_producer_id import InitProducerId, ProducerIds
from agent.admin.metadata import Metadata
from agent.admin.partition_reassignments import AlterPartitionReassignments, ListPartitionReassignments
from agent.admin.topic_creation import TopicCreation
from agent.admin.topic_rules import TopicDefaults
from agent.admin.update_features import UpdateFeatures
from agent.cluster.view import ClusterView
from agent.dispatch import Dispatcher
from agent.fetch.service import FetchService
from agent.groups.handlers import GroupHandlers
from agent.listener.request import Handler
from agent.produce.pipeline import ProducePipeline
from agent.protocol.api_keys import ApiKey
from config.settings import Settings
from metastore.api import Metastore
from storage.clock import Clock


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
) -> None:
    """Fill the dispatcher's table."""
    defaults = TopicDefaults(settings.num_partitions, settings.default_replication_factor)
    creation = TopicCreation(cluster, metastore, clock, rng, defaults)
    gate = ControllerGate(cluster, metastore)
    table: dict[int, Handler] = {
        ApiKey.PRODUCE: produce.handle,
        ApiKey.FETCH: fetch.handle_fetch,
        ApiKey.LIST_OFFSETS: fetch.handle_list_offsets,
        ApiKey.METADATA: Metadata(cluster, creation, auto_create_topics=settings.auto_create_topics_enable),
        ApiKey.CREATE_TOPICS: CreateTopics(creation, {"max.message.bytes": str(settings.message_max_bytes)}),
        ApiKey.DELETE_TOPICS: DeleteTopics(cluster, metastore, clock),
        ApiKey.DESCRIBE_CLUSTER: DescribeCluster(cluster),
        ApiKey.DESCRIBE_QUORUM: DescribeQuorum(cluster, metastore),
        ApiKey.UPDATE_FEATURES: UpdateFeatures(cluster, metastore, clock),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: AlterPartitionReassignments(cluster, metastore, clock),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: ListPartitionReassignments(cluster),
        ApiKey.BROKER_REGISTRATION: BrokerRegistration(gate, metastore),
        ApiKey.BROKER_HEARTBEAT: BrokerHeartbeat(gate, cluster, metastore, settings.broker_session_timeout_ms),
        ApiKey.UNREGISTER_BROKER: UnregisterBroker(cluster, metastore),
        ApiKey.FIND_COORDINATOR: FindCoordinator(cluster),
        ApiKey.INIT_PRODUCER_ID: InitProducerId(ProducerIds(metastore)),
    }
    for api_key, handler in table.items():
        dispatcher.register(api_key, handler)
    groups.register(dispatcher)
