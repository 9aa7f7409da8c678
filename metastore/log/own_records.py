"""The metadata log's records that KIP-631 lacks.

Place: as kip631_records.py.
Invariant: types of ours start at OWN_TYPES: Kafka's later numbers name other payloads than KIP-631's records would
need. A stored number is never reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.kip631_records import ANCESTORS, AncestorEpoch
from headrace.metastore.log.wire import (
    Array,
    Blob,
    Id,
    Int8,
    Int32,
    Int64,
    NotNull,
    NullableText,
    Structure,
    Text,
    record,
)

OWN_TYPES = 100


@record(OWN_TYPES)
class RemoveAccessControlRecord(MetadataRecord):
    """Names the AccessControlRecord that it removes by all its fields, as that has no id."""

    resource_type: Int8
    resource_name: NullableText
    pattern_type: Int8
    principal: Text
    host: Text
    operation: Int8
    permission_type: Int8


@record(OWN_TYPES + 1)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """All of the user's credentials; fewer of them are set with a UserScramCredentialRecord."""

    user_name: Text


@record(OWN_TYPES + 2)
class RemoveDelegationTokenRecord(MetadataRecord):
    token_id: Text


@record(OWN_TYPES + 3)
class RemoveFeatureLevelRecord(MetadataRecord):
    """The cluster no longer uses the feature."""

    name: Text


@record(OWN_TYPES + 4)
class ControlledShutdownRecord(MetadataRecord):
    """The agent is about to go: clients are no longer sent to it, but it may still commit."""

    broker_id: Int32
    broker_epoch: Int64


@record(OWN_TYPES + 5)
class HideBrokerRecord(MetadataRecord):
    """The agent refuses connections: clients are no longer sent to it, but it is not fenced yet."""

    broker_id: Int32
    broker_epoch: Int64


@record(OWN_TYPES + 6)
class ShowBrokerRecord(MetadataRecord):
    """The agent was heard again after it was hidden."""

    broker_id: Int32
    broker_epoch: Int64


@record(OWN_TYPES + 7)
class PartitionCountRecord(MetadataRecord):
    """How many partitions of the topic take new records from now on.

    The leader epochs of those that took them until now rise by one. PartitionRecords of new partitions follow, or a
    MarkPartitionRecord for each that no longer takes any.
    """

    topic_id: Id
    initial_partition_count: Int32
    undeleted_partition_count: Int32


@record(OWN_TYPES + 8)
class MarkPartitionRecord(MetadataRecord):
    """The partition takes no new records, and is removed when it is empty."""

    partition_id: Int32
    topic_id: Id
    before_deletion: Annotated[tuple[AncestorEpoch, ...], ANCESTORS]


@record(OWN_TYPES + 9)
class RemovePartitionRecord(MetadataRecord):
    """A marked partition is gone. Its leader epoch is remembered: the index may return."""

    partition_id: Int32
    topic_id: Id


@record(OWN_TYPES + 10)
class SplitPartitionRecord(MetadataRecord):
    """The partition shares its keys with a child since the topic doubled; until the next change of the count.

    Without a boundary (-1) readers do not begin with the child; with one, when they have read the partition up to it.
    """

    partition_id: Int32
    topic_id: Id
    child: Int32
    boundary: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramKeys:
    """Instead of CredentialInfo: StoredKey and ServerKey of RFC 5802, which do not allow a login."""

    mechanism: Int8
    salt: Blob
    iterations: Int32
    stored_key: Blob
    server_key: Blob


@record(OWN_TYPES + 11)
class UserScramKeysRecord(MetadataRecord):
    """All of the user's credentials, instead of a UserScramCredentialRecord."""

    user_name: Text
    keys: Annotated[tuple[ScramKeys, ...], NotNull(Array(Structure(ScramKeys)))]


@record(OWN_TYPES + 12)
class HalveTopicRecord(MetadataRecord):
    """The topic halves to so many partitions from here on; -1: it no longer does (metastore/partitions/merging.py)."""

    topic_id: Id
    partition_count: Int32


@record(OWN_TYPES + 13)
class AliasPartitionRecord(MetadataRecord):
    """What comes for the partition is appended to its parent from here on, until an expansion creates it again."""

    partition_id: Int32
    topic_id: Id
    parent: Int32


@record(OWN_TYPES + 14)
class DoubleTopicRecord(MetadataRecord):
    """The topic will have so many partitions soon: until its count changes, agents describe it at the log's head only.

    So no agent shows the count of before when another one shows the new one (decisions/0054).
    """

    topic_id: Id
    partition_count: Int32
