"""The APIs and versions that Headrace can serve, and the ApiVersions response (API key 18).

Place: the listener parses request headers with this table; `agent.apis.dispatch` advertises the rows that
have a handler.
Invariant: only implemented versions are advertised, at most up to the newest stable version of Kafka 4
that kio 0.6 knows.
Source: KIP-35, KIP-511 (client software), KIP-584 (features), KIP-896 (lowest versions), KAFKA-18659 (Produce from
0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kio.schema.api_versions.v4.response import ApiVersion, FinalizedFeatureKey, SupportedFeatureKey
from kio.schema.errors import ErrorCode

from headrace.metastore.api.agents import CHOSEN_FEATURES, KAFKA_FEATURES, OPTIONAL_FEATURES, SUPPORTED_FEATURES
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, schema


class Api(NamedTuple):
    """One API: versions are inclusive; from `first_flexible` on, headers and bodies have tagged fields."""

    key: int
    name: str
    min_version: int
    max_version: int
    first_flexible: int
    is_wide: bool = False
    """It may answer a small request with a large reply: it starts only while replies have memory."""
    is_alone: bool = False
    """It changes something, and a connection processes it as Kafka does: the next request starts when it is answered.
    Produce is not one of them: a producer's later requests are processed while its batches wait for their flush. Each
    guess of a password waits for the answer to the one before."""
    is_for_controllers: bool = False
    """Advertised on listeners for controllers only, as in Kafka. The requests of brokers are not served elsewhere
    either: a client could add agents. Snapshots are, to `headrace shell`."""

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


_TABLE = (
    # Advertised from 0 because librdkafka derives its message format from it; 0-2 are answered UNSUPPORTED_VERSION.
    Api(ApiKey.PRODUCE, "Produce", 0, 13, 9),
    Api(ApiKey.FETCH, "Fetch", 4, 18, 12),
    Api(ApiKey.LIST_OFFSETS, "ListOffsets", 1, 11, 6),
    Api(ApiKey.METADATA, "Metadata", 0, 13, 9, is_wide=True),
    Api(ApiKey.OFFSET_COMMIT, "OffsetCommit", 2, 10, 8, is_alone=True),
    Api(ApiKey.OFFSET_FETCH, "OffsetFetch", 1, 10, 6, is_wide=True),
    Api(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
    Api(ApiKey.JOIN_GROUP, "JoinGroup", 0, 9, 6),
    Api(ApiKey.HEARTBEAT, "Heartbeat", 0, 4, 4),
    Api(ApiKey.LEAVE_GROUP, "LeaveGroup", 0, 5, 4),
    Api(ApiKey.SYNC_GROUP, "SyncGroup", 0, 5, 4),
    Api(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5, is_wide=True),
    Api(ApiKey.LIST_GROUPS, "ListGroups", 0, 5, 3, is_wide=True),
    Api(ApiKey.SASL_HANDSHAKE, "SaslHandshake", 0, 1, 2, is_alone=True),
    Api(ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3),
    Api(ApiKey.CREATE_TOPICS, "CreateTopics", 2, 7, 5, is_alone=True),
    Api(ApiKey.DELETE_TOPICS, "DeleteTopics", 1, 6, 4, is_alone=True),
    Api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, 2, is_alone=True),
    Api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3, is_alone=True),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, 3, is_alone=True),
    Api(ApiKey.END_TXN, "EndTxn", 0, 5, 3, is_alone=True),
    Api(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2, 1, is_alone=True),
    Api(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, 3, is_alone=True),
    Api(ApiKey.DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2, is_wide=True),
    Api(ApiKey.CREATE_ACLS, "CreateAcls", 1, 3, 2, is_alone=True),
    Api(ApiKey.DELETE_ACLS, "DeleteAcls", 1, 3, 2, is_alone=True),
    Api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4, is_wide=True),
    Api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2, is_alone=True),
    Api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2, is_wide=True),
    Api(ApiKey.SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2, is_alone=True),
    Api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2, is_alone=True),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, "CreateDelegationToken", 1, 3, 2),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, "RenewDelegationToken", 1, 2, 2),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken", 1, 2, 2),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken", 1, 3, 2, is_wide=True),
    Api(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, 2, is_alone=True),
    Api(ApiKey.ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1, is_alone=True),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, 0, is_alone=True),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0, is_wide=True),
    Api(ApiKey.OFFSET_DELETE, "OffsetDelete", 0, 0, 1, is_alone=True),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1, is_wide=True),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1, 1, is_alone=True),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0, 0, is_wide=True),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", 0, 0, 0, is_alone=True),
    Api(ApiKey.DESCRIBE_QUORUM, "DescribeQuorum", 0, 2, 0),
    Api(ApiKey.UPDATE_FEATURES, "UpdateFeatures", 0, 2, 0, is_alone=True),
    Api(ApiKey.FETCH_SNAPSHOT, "FetchSnapshot", 0, 1, 0, is_wide=True, is_for_controllers=True),
    Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
    Api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0, is_wide=True),
    Api(ApiKey.BROKER_REGISTRATION, "BrokerRegistration", 0, 4, 0, is_for_controllers=True),
    Api(ApiKey.BROKER_HEARTBEAT, "BrokerHeartbeat", 0, 2, 0, is_for_controllers=True),
    Api(ApiKey.UNREGISTER_BROKER, "UnregisterBroker", 0, 0, 0),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0, is_wide=True),
    Api(ApiKey.LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0, is_wide=True),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0, is_wide=True),
    Api(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0, is_wide=True),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0, is_wide=True),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat", 1, 1, 0),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, "ShareGroupDescribe", 1, 1, 0, is_wide=True),
    Api(ApiKey.SHARE_FETCH, "ShareFetch", 1, 2, 0, is_wide=True, is_alone=True),
    Api(ApiKey.SHARE_ACKNOWLEDGE, "ShareAcknowledge", 1, 2, 0, is_alone=True),
    Api(ApiKey.STREAMS_GROUP_HEARTBEAT, "StreamsGroupHeartbeat", 0, 0, 0),
    Api(ApiKey.STREAMS_GROUP_DESCRIBE, "StreamsGroupDescribe", 0, 0, 0, is_wide=True),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsets", 0, 1, 0, is_wide=True),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsets", 0, 0, 0, is_alone=True),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "DeleteShareGroupOffsets", 0, 0, 0, is_alone=True),
)

APIS: dict[int, Api] = {api.key: api for api in _TABLE}
"""Every API that Headrace can serve, by key."""

WIDE, ALONE, CONTROLLER_ONLY = (
    frozenset(api.key for api in _TABLE if getattr(api, of)) for of in ("is_wide", "is_alone", "is_for_controllers")
)
"""The keys of the rows that say so: the listener looks for one in each request."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """Answers with the rows that it was created with, also for an unknown request version."""

    def __init__(self, served: Iterable[Api], image: Callable[[], MetadataImage] = MetadataImage) -> None:
        """`image` returns the newest image, for the feature levels that the cluster uses."""
        self._served = tuple(served)
        self._image = image

    async def __call__(self, request: Request) -> Response:
        """The version ranges; UNSUPPORTED_VERSION in v0 for an unknown version, INVALID_REQUEST for a malformed
        software name.
        """
        version = request.api_version
        if not APIS[ApiKey.API_VERSIONS].serves(version):
            return Response(self._encode(request.correlation_id, 0, ErrorCode.unsupported_version))
        if version < 3:
            return Response(self._encode(request.correlation_id, version, ErrorCode.none))
        _, asked = decode(request)
        software, software_version = asked.client_software_name, asked.client_software_version
        if not (_SOFTWARE.fullmatch(software) and _SOFTWARE.fullmatch(software_version)):
            return Response(self._encode(request.correlation_id, version, ErrorCode.invalid_request))
        return Response(self._encode(request.correlation_id, version, ErrorCode.none))

    def _encode(self, correlation_id: int, version: int, error: ErrorCode) -> list[bytes | memoryview]:
        answer = schema(ApiKey.API_VERSIONS, version)
        rows = () if error == ErrorCode.invalid_request else self._served
        api_keys = tuple(
            answer.make(ApiVersion, api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in rows
        )
        entity = answer.response(error_code=error, api_keys=api_keys, **self._features(answer))
        return answer.encode(correlation_id, entity)

    def _features(self, answer: Schema) -> dict[str, Any]:
        """The features with levels that UpdateFeatures accepts, and the levels the cluster uses.

        Clients below v4 misread a lowest level of 0.
        """
        if answer.version < 3:
            return {}
        image = self._image()
        own = {name: image.features[name] for name in OPTIONAL_FEATURES if name in image.features}
        known = {**KAFKA_FEATURES, **SUPPORTED_FEATURES, **CHOSEN_FEATURES, **own}
        supported = {name: levels for name, levels in known.items() if answer.version > 3 or levels[0] > 0}
        return {
            "supported_features": tuple(
                answer.make(SupportedFeatureKey, name=name, min_version=levels.min_level, max_version=levels.max_level)
                for name, levels in supported.items()
            ),
            "finalized_features_epoch": image.offset,
            "finalized_features": tuple(
                answer.make(
                    FinalizedFeatureKey,
                    name=name,
                    min_version_level=levels.min_level,
                    max_version_level=levels.max_level,
                )
                for name, levels in {**KAFKA_FEATURES, **image.features}.items()
            ),
        }
