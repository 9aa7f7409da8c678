"""The 15 records of KIP-631.

Place: written by metastore/postgres/cluster/, read by metastore/log/image.py and the log's tools.
Invariant: names, numbers, order and types of the fields are KIP-631's; tags of ours start at OWN_TAGS. A stored
number is never reused.
Source: KIP-631, "Record Formats" (seed kip-631-quorum-controller).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.wire import (
    OWN_TAGS,
    Array,
    Blob,
    Bool,
    Fixed,
    Float64,
    Id,
    Int8,
    Int16,
    Int32,
    Int32s,
    Int64,
    NotNull,
    NullableText,
    Structure,
    Tag,
    Text,
    Texts,
    UInt16,
    record,
)

TOPIC_RESOURCE = 2
"""ConfigResource.Type.TOPIC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    name: Text
    host: Text
    port: UInt16
    security_protocol: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFeature:
    name: Text
    min_version: Int16
    max_version: Int16


@record(0)
class RegisterBrokerRecord(MetadataRecord):
    broker_id: Int32
    incarnation_id: Id
    broker_epoch: Int64
    end_points: Annotated[tuple[BrokerEndpoint, ...] | None, Array(Structure(BrokerEndpoint))]
    features: Annotated[tuple[BrokerFeature, ...] | None, Array(Structure(BrokerFeature))]
    rack: NullableText


@record(1)
class UnregisterBrokerRecord(MetadataRecord):
    broker_id: Int32
    broker_epoch: Int64


@record(2)
class TopicRecord(MetadataRecord):
    """The tagged fields are ours; -1 where another writer left them out.

    `topic_number` is set in snapshots only: in the log it is the record's own offset. `replication_factor` is what was
    asked for; the previous release leaves it out.
    """

    topic_name: Text
    topic_id: Id
    initial_partition_count: Annotated[int, Fixed("i"), Tag(OWN_TAGS)] = -1
    undeleted_partition_count: Annotated[int, Fixed("i"), Tag(OWN_TAGS + 1)] = -1
    topic_number: Annotated[int, Fixed("q"), Tag(OWN_TAGS + 2)] = -1
    replication_factor: Annotated[int, Fixed("h"), Tag(OWN_TAGS + 3)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AncestorEpoch:
    """The leader epoch of a marked partition's ancestor, before it rose."""

    ancestor: Int32
    leader_epoch: Int32


ANCESTORS = NotNull(Array(Structure(AncestorEpoch)))


@record(3)
class PartitionRecord(MetadataRecord):
    """The tagged fields are ours, of metadata.format 4. `source` and its epoch: of a partition of an expansion.

    The index is the next one, or that of a removed partition. The last two are set in snapshots only.
    """

    partition_id: Int32 = -1
    topic_id: Id
    replicas: Int32s
    isr: Int32s
    removing_replicas: Int32s
    adding_replicas: Int32s
    leader: Int32 = -1
    leader_epoch: Int32 = -1
    source: Annotated[int, Fixed("i"), Tag(OWN_TAGS)] = -1
    source_epoch: Annotated[int, Fixed("i"), Tag(OWN_TAGS + 1)] = -1
    before_deletion: Annotated[tuple[AncestorEpoch, ...], ANCESTORS, Tag(OWN_TAGS + 2)] = ()
    is_removed: Annotated[bool, Fixed("?"), Tag(OWN_TAGS + 3)] = False


@record(4)
class ConfigRecord(MetadataRecord):
    """`value` None removes the setting: KIP-631 has no record for that, Kafka's later schema does it so."""

    resource_type: Int8
    resource_name: Text
    name: Text
    value: NullableText


@record(5)
class PartitionChangeRecord(MetadataRecord):
    """None, and -2 for the leader: no change."""

    partition_id: Int32 = -1
    topic_id: Id
    isr: Annotated[tuple[int, ...] | None, Array(Fixed("i")), Tag(0)] = None
    leader: Annotated[int, Fixed("i"), Tag(1)] = -2
    replicas: Annotated[tuple[int, ...] | None, Array(Fixed("i")), Tag(2)] = None
    removing_replicas: Annotated[tuple[int, ...] | None, Array(Fixed("i")), Tag(3)] = None
    adding_replicas: Annotated[tuple[int, ...] | None, Array(Fixed("i")), Tag(4)] = None


@record(6)
class AccessControlRecord(MetadataRecord):
    resource_type: Int8
    resource_name: NullableText
    pattern_type: Int8
    principal: Text
    host: Text
    operation: Int8
    permission_type: Int8


@record(7)
class FenceBrokerRecord(MetadataRecord):
    broker_id: Int32
    broker_epoch: Int64


@record(8)
class UnfenceBrokerRecord(MetadataRecord):
    broker_id: Int32
    broker_epoch: Int64


@record(9)
class RemoveTopicRecord(MetadataRecord):
    topic_id: Id


@record(10)
class DelegationTokenRecord(MetadataRecord):
    owner: Text
    renewers: Texts
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialInfo:
    mechanism: Int8
    salt: Blob
    salted_password: Blob
    iterations: Int32


@record(11)
class UserScramCredentialRecord(MetadataRecord):
    user_name: Text
    credential_infos: Annotated[tuple[CredentialInfo, ...], NotNull(Array(Structure(CredentialInfo)))]


@record(12)
class FeatureLevelRecord(MetadataRecord):
    name: Text
    min_feature_level: Int16
    max_feature_level: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWithFailures:
    topic_id: Id
    partitions: Int32s


@record(13)
class FailedReplicasRecord(MetadataRecord):
    broker_id: Int32
    topics: Annotated[tuple[TopicWithFailures, ...], NotNull(Array(Structure(TopicWithFailures)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityData:
    entity_type: Text
    entity_name: NullableText


@record(14)
class QuotaRecord(MetadataRecord):
    """Record of a quota; with `remove` the value is ignored."""

    entity: Annotated[tuple[EntityData, ...], NotNull(Array(Structure(EntityData)))]
    key: Text
    value: Float64
    remove: Bool
