"""The metadata log's records: framing, the 15 types of KIP-631, and those that it lacks.

Place: written by metastore/postgres/cluster/, read by metastore/log/image.py and the log's tools.
Invariant: a record's bytes are `frame type, record type, version` as unsigned varints, then the
payload in Kafka's flexible encoding. Names, numbers, order and types of the fields are KIP-631's;
tags of ours start at OWN_TAGS, types of ours at OWN_TYPES: Kafka's later numbers name other payloads
than KIP-631's records would need. A stored number is never reused.
Source: KIP-631, "Record Formats" (seed kip-631-quorum-controller).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar, dataclass_transform

from headrace.metastore.log.wire import (
    Array,
    Bytes,
    Fixed,
    NotNull,
    Reader,
    String,
    Structure,
    Tag,
    Uuid,
    write_uvarint,
)
from headrace.storage.errors import CorruptError, InvalidError

FRAME_TYPE = 0
VERSION = 0
OWN_TAGS = 10_000
OWN_TYPES = 100
TOPIC_RESOURCE = 2
"""ConfigResource.Type.TOPIC."""

Int8 = Annotated[int, Fixed("b")]
Int16 = Annotated[int, Fixed("h")]
UInt16 = Annotated[int, Fixed("H")]
Int32 = Annotated[int, Fixed("i")]
Int64 = Annotated[int, Fixed("q")]
Float64 = Annotated[float, Fixed("d")]
Bool = Annotated[bool, Fixed("?")]
Id = Annotated[uuid.UUID, Uuid()]
Text = Annotated[str, NotNull(String())]
NullableText = Annotated[str | None, String()]
Blob = Annotated[bytes, NotNull(Bytes())]
Int32s = Annotated[tuple[int, ...], NotNull(Array(Fixed("i")))]
Texts = Annotated[tuple[str, ...], NotNull(Array(NotNull(String())))]


class MetadataRecord:
    """Base of all record types."""

    __slots__ = ()
    record_type: ClassVar[int]


_TYPES: dict[int, tuple[type[MetadataRecord], Structure]] = {}
_Record = TypeVar("_Record", bound=MetadataRecord)


def encode_record(record: MetadataRecord) -> bytes:
    """The framed bytes of a record. InvalidError when a value does not fit its field."""
    cls, structure = _TYPES[record.record_type]
    out = bytearray()
    for number in (FRAME_TYPE, record.record_type, VERSION):
        write_uvarint(out, number)
    try:
        structure.write(out, record)
    except struct.error as error:
        raise InvalidError(f"metadata record has a number out of range: record={cls.__name__} {error}") from error
    return bytes(out)


def decode_record(data: bytes) -> MetadataRecord:
    """The record in framed bytes.

    InvalidError for a frame, type or version that this software does not know (a newer one wrote
    it); CorruptError for bytes that are not exactly one record.
    """
    reader = Reader(data)
    frame_type, record_type, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    if frame_type != FRAME_TYPE:
        raise InvalidError(f"unknown metadata frame type: frame_type={frame_type}")
    if record_type not in _TYPES:
        raise InvalidError(f"unknown metadata record type: record_type={record_type}")
    cls, structure = _TYPES[record_type]
    if version != VERSION:
        raise InvalidError(f"unknown metadata record version: record={cls.__name__} version={version}")
    record: MetadataRecord = structure.read(reader)
    if reader.position != reader.end:
        raise CorruptError(f"metadata record has surplus bytes: record={cls.__name__} of={len(data)}")
    return record


def record_types() -> list[type[MetadataRecord]]:
    """Every type, by number."""
    return [cls for _, (cls, _) in sorted(_TYPES.items())]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _record(number: int) -> Callable[[type[_Record]], type[_Record]]:
    """A frozen dataclass that is registered under its record type."""

    def register(plain: type[_Record]) -> type[_Record]:
        cls = dataclass(frozen=True, slots=True, kw_only=True)(plain)
        cls.record_type = number
        _TYPES[number] = (cls, Structure(cls))
        return cls

    return register


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


@_record(0)
class RegisterBrokerRecord(MetadataRecord):
    broker_id: Int32
    incarnation_id: Id
    broker_epoch: Int64
    end_points: Annotated[tuple[BrokerEndpoint, ...] | None, Array(Structure(BrokerEndpoint))]
    features: Annotated[tuple[BrokerFeature, ...] | None, Array(Structure(BrokerFeature))]
    rack: NullableText


@_record(1)
class UnregisterBrokerRecord(MetadataRecord):
    broker_id: Int32
    broker_epoch: Int64


@_record(2)
class TopicRecord(MetadataRecord):
    """The tagged fields are ours; -1 where another writer left them out.

    `topic_number` is set in snapshots only: in the log it is the record's own offset.
    """

    topic_name: Text
    topic_id: Id
    initial_partition_count: Annotated[int, Fixed("i"), Tag(OWN_TAGS)] = -1
    undeleted_partition_count: Annotated[int, Fixed("i"), Tag(OWN_TAGS + 1)] = -1
    topic_number: Annotated[int, Fixed("q"), Tag(OWN_TAGS + 2)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AncestorEpoch:
    """The leader epoch of a marked partition's ancestor, before it rose."""

    ancestor: Int32
    leader_epoch: Int32


_ANCESTORS = NotNull(Array(Structure(AncestorEpoch)))


@_record(3)
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
    before_deletion: Annotated[tuple[AncestorEpoch, ...], _ANCESTORS, Tag(OWN_TAGS + 2)] = ()
    is_removed: Annotated[bool, Fixed("?"), Tag(OWN_TAGS + 3)] = False


@_record(4)
class ConfigRecord(MetadataRecord):
    """`value` None removes the setting: KIP-631 has no record for that, Kafka's later schema does it so."""

    resource_type: Int8
    resource_name: Text
    name: Text
    value: NullableText


@_record(5)
class PartitionChangeRecord(MetadataRecord):
    """None, and -2 for the leader: no change."""

    partition_id: Int32 = -1
    topic_id: Id
    isr: Annotated[tuple[int, ...] | None, Array(Fixed("i")), Tag(0)] = None
    leader: Annotated[int, Fixed("i"), Tag(1)] = -2
    replicas: Annotated[tuple[int, ...] | None, Array(Fixed("i")), Tag(2)] = None
    removing_replicas: Annotated[tuple[int, ...] | None, Array(Fixed("i")), Tag(3)] = None
    adding_replicas: Annotated[tuple[int, ...] | None, Array(Fixed("i")), Tag(4)] = None


@_record(6)
class AccessControlRecord(MetadataRecord):
    resource_type: Int8
    resource_name: NullableText
    pattern_type: Int8
    principal: Text
    host: Text
    operation: Int8
    permission_type: Int8


@_record(7)
class FenceBrokerRecord(MetadataRecord):
    broker_id: Int32
    broker_epoch: Int64


@_record(8)
class UnfenceBrokerRecord(MetadataRecord):
    broker_id: Int32
    broker_epoch: Int64


@_record(9)
class RemoveTopicRecord(MetadataRecord):
    topic_id: Id


@_record(10)
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


@_record(11)
class UserScramCredentialRecord(MetadataRecord):
    user_name: Text
    credential_infos: Annotated[tuple[CredentialInfo, ...], NotNull(Array(Structure(CredentialInfo)))]


@_record(12)
class FeatureLevelRecord(MetadataRecord):
    name: Text
    min_feature_level: Int16
    max_feature_level: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWithFailures:
    topic_id: Id
    partitions: Int32s


@_record(13)
class FailedReplicasRecord(MetadataRecord):
    broker_id: Int32
    topics: Annotated[tuple[TopicWithFailures, ...], NotNull(Array(Structure(TopicWithFailures)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityData:
    entity_type: Text
    entity_name: NullableText


@_record(14)
class QuotaRecord(MetadataRecord):
    """With `remove` the value is ignored."""

    entity: Annotated[tuple[EntityData, ...], NotNull(Array(Structure(EntityData)))]
    key: Text
    value: Float64
    remove: Bool


@_record(OWN_TYPES)
class RemoveAccessControlRecord(MetadataRecord):
    """Names the AccessControlRecord that it removes by all its fields, as that has no id."""

    resource_type: Int8
    resource_name: NullableText
    pattern_type: Int8
    principal: Text
    host: Text
    operation: Int8
    permission_type: Int8


@_record(OWN_TYPES + 1)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """All of the user's credentials; fewer of them are set with a UserScramCredentialRecord."""

    user_name: Text


@_record(OWN_TYPES + 2)
class RemoveDelegationTokenRecord(MetadataRecord):
    token_id: Text


@_record(OWN_TYPES + 3)
class RemoveFeatureLevelRecord(MetadataRecord):
    """The cluster no longer uses the feature."""

    name: Text


@_record(OWN_TYPES + 4)
class ControlledShutdownRecord(MetadataRecord):
    """The agent is about to go: clients are no longer sent to it, but it may still commit."""

    broker_id: Int32
    broker_epoch: Int64


@_record(OWN_TYPES + 5)
class HideBrokerRecord(MetadataRecord):
    """The agent refuses connections: clients are no longer sent to it, but it is not fenced yet."""

    broker_id: Int32
    broker_epoch: Int64


@_record(OWN_TYPES + 6)
class ShowBrokerRecord(MetadataRecord):
    """The agent was heard again after it was hidden."""

    broker_id: Int32
    broker_epoch: Int64


@_record(OWN_TYPES + 7)
class PartitionCountRecord(MetadataRecord):
    """How many partitions of the topic take new records from now on.

    The leader epochs of those that took them until now rise by one. PartitionRecords of new partitions follow, or a
    MarkPartitionRecord for each that no longer takes any.
    """

    topic_id: Id
    initial_partition_count: Int32
    undeleted_partition_count: Int32


@_record(OWN_TYPES + 8)
class MarkPartitionRecord(MetadataRecord):
    """The partition takes no new records, and is removed when it is empty."""

    partition_id: Int32
    topic_id: Id
    before_deletion: Annotated[tuple[AncestorEpoch, ...], _ANCESTORS]


@_record(OWN_TYPES + 9)
class RemovePartitionRecord(MetadataRecord):
    """A marked partition is gone. Its leader epoch is remembered: the index may return."""

    partition_id: Int32
    topic_id: Id


@_record(OWN_TYPES + 10)
class SplitPartitionRecord(MetadataRecord):
    """The partition shares its keys with a child since the topic doubled; until the next change of the count.

    Without a boundary (-1) readers do not begin with the child; with one, when they have read the partition up to it.
    """

    partition_id: Int32
    topic_id: Id
    child: Int32
    boundary: Int64


@_record(OWN_TYPES + 12)
class HalveTopicRecord(MetadataRecord):
    """The topic halves to so many partitions from here on; -1: it no longer does (metastore/partitions/merging.py)."""

    topic_id: Id
    partition_count: Int32


@_record(OWN_TYPES + 13)
class AliasPartitionRecord(MetadataRecord):
    """What comes for the partition is appended to its parent from here on, until an expansion creates it again."""

    partition_id: Int32
    topic_id: Id
    parent: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramKeys:
    """Instead of CredentialInfo: StoredKey and ServerKey of RFC 5802, which do not allow a login."""

    mechanism: Int8
    salt: Blob
    iterations: Int32
    stored_key: Blob
    server_key: Blob


@_record(OWN_TYPES + 14)
class DoubleTopicRecord(MetadataRecord):
    """The topic will have so many partitions soon: until its count changes, agents describe it at the log's head only.

    So no agent shows the count of before when another one shows the new one (decisions/0054).
    """

    topic_id: Id
    partition_count: Int32


@_record(OWN_TYPES + 11)
class UserScramKeysRecord(MetadataRecord):
    """All of the user's credentials, instead of a UserScramCredentialRecord."""

    user_name: Text
    keys: Annotated[tuple[ScramKeys, ...], NotNull(Array(Structure(ScramKeys)))]
