"""Makes the next metadata image from one and the log after it.

Place: the follower of every agent and controller, and tools, from a snapshot or from nothing on.
Invariant: pure: an image after records a and then b equals the image after a + b, wherever the cut
is. A record that contradicts what came before it (a partition of an unknown topic, a stale epoch) is
CorruptError: the log is written under a lock by code that checked.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from headrace.metastore.api.agents import LEADER_FEATURES, METADATA_FORMAT, SEALED_SECRETS, FeatureRange, Listener
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.features import SCRAM_KEYS_FORMAT, refuse_unknown_format
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import (
    TOPIC_RESOURCE,
    AccessControlRecord,
    ConfigRecord,
    CredentialInfo,
    DelegationTokenRecord,
    FailedReplicasRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    QuotaRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from headrace.metastore.log.mutable_copies import ChangingPartitions, CopiedOnWrite, set_value
from headrace.metastore.log.own_records import (
    AliasPartitionRecord,
    ControlledShutdownRecord,
    DoubleTopicRecord,
    HalveTopicRecord,
    HideBrokerRecord,
    MarkPartitionRecord,
    PartitionCountRecord,
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemovePartitionRecord,
    RemoveUserScramCredentialRecord,
    ScramKeys,
    ShowBrokerRecord,
    SplitPartitionRecord,
    UserScramKeysRecord,
)
from headrace.metastore.log.records import decode_record, plain_partition
from headrace.metastore.log.scram_keys import as_keys
from headrace.storage.errors import CorruptError


def apply(image: MetadataImage, records: Iterable[bytes]) -> MetadataImage:
    """The image after the framed `records`, which are in the log from `image.offset` on.

    Errors as decode_record's, CorruptError for a record that contradicts the image, and InvalidError
    for a metadata.format that this software does not know.
    """
    builder = ImageBuilder(image)
    builder.add(records)
    return builder.finish()


DELETED_NAMES_MAX = 1_000
UNREGISTERED_MAX = 1_000
"""Agents that are remembered after they were unregistered: the newest ones."""


class ImageBuilder:
    """A mutable copy of an image: make one for many pages of records, as each costs a copy."""

    def __init__(self, image: MetadataImage) -> None:
        self.offset = image.offset
        self._base = image
        self._topics = image.topics_by_id
        self._own_topics: dict[uuid.UUID, TopicImage] | None = None
        """What `_topics` is once one changed: there may be 100,000, and most later records are not theirs."""
        self._changing: dict[uuid.UUID, ChangingPartitions] = {}
        """Of the topics with partitions that changed here."""
        self._agents = CopiedOnWrite(image.agents)
        self._moves_leaders = False
        """Some record changed the agents, or how leaders follow from them; what is as before at the end counts too."""
        self._unregistered = CopiedOnWrite(image.unregistered)
        self._deleted_names = CopiedOnWrite(image.deleted_names)
        self._configs = CopiedOnWrite(image.configs)
        self._features = dict(image.features)
        self._access_controls: set[AccessControlRecord] | None = None
        """What the image's set becomes; None while no ACL changed. An unchanged set stays the same object."""
        self._credentials = dict(image.scram_credentials)
        self._passwords_until = image.passwords_until
        self._tokens = dict(image.delegation_tokens)
        self._quotas = CopiedOnWrite(image.quotas)
        self._failed = dict(image.failed_replicas)

    def add(self, records: Iterable[bytes]) -> None:
        """Apply framed records at the builder's offset. Errors as `apply`; the builder is of no use after one."""
        topic_id, epochs = b"", []
        for data in records:
            plain = plain_partition(data)
            if plain is None:
                record = decode_record(data)
                _HANDLERS[type(record)](self, record)
                topic_id = b""  # the list may be another one now
            else:
                index, plain_id, epoch = plain
                if plain_id != topic_id:
                    topic_id, epochs = plain_id, self._partitions_of(uuid.UUID(bytes=plain_id)).epochs
                if index != len(epochs):
                    raise self._out_of_turn(uuid.UUID(bytes=topic_id), index)
                epochs.append(epoch)
            self.offset += 1

    def finish(self) -> MetadataImage:
        """The image at the builder's offset; what did not change is shared with the one before."""
        for topic_id, partitions in self._changing.items():
            self._writable_topics()[topic_id] = partitions.applied_to(self._topics[topic_id], self.offset)
        return MetadataImage(
            offset=self.offset,
            **self._topic_maps(),
            agents=self._agents.finished(),
            unregistered=self._unregistered.finished(),
            deleted_names=self._deleted_names.finished(),
            configs=self._configs.finished(),
            features=MappingProxyType(self._features),
            access_controls=self._acl_set(),
            scram_credentials=MappingProxyType(self._credentials),
            passwords_until=self._passwords_until,
            delegation_tokens=MappingProxyType(self._tokens),
            quotas=self._quotas.finished(),
            failed_replicas=MappingProxyType(self._failed),
            moved_at=self.offset if self._moves_leaders else self._base.moved_at,
        )

    def _acl_set(self) -> frozenset[AccessControlRecord]:
        found = self._access_controls
        return self._base.access_controls if found is None else frozenset(found)

    def _writable_acls(self) -> set[AccessControlRecord]:
        if self._access_controls is None:
            self._access_controls = set(self._base.access_controls)
        return self._access_controls

    def _topic_maps(self) -> dict[str, Any]:
        base, own = self._base, self._own_topics
        if own is None:
            names, ids, numbers = base.topics_by_name, base.topics_by_id, base.topics_by_number
        else:
            names = MappingProxyType({topic.name: topic for topic in own.values()})
            ids = MappingProxyType(own)
            numbers = MappingProxyType({topic.topic_number: topic for topic in own.values()})
        return {"topics_by_name": names, "topics_by_id": ids, "topics_by_number": numbers}

    def _writable_topics(self) -> dict[uuid.UUID, TopicImage]:
        if self._own_topics is None:
            self._topics = self._own_topics = dict(self._topics)
        return self._own_topics

    # -- topics

    def _topic(self, record: TopicRecord) -> None:
        if record.topic_id in self._topics:
            raise self._contradiction(f"topic exists: topic_id={record.topic_id}")
        self._deleted_names.pop(record.topic_name, None)
        self._writable_topics()[record.topic_id] = TopicImage(
            topic_id=record.topic_id,
            topic_number=self.offset if record.topic_number < 0 else record.topic_number,
            name=record.topic_name,
            initial_partition_count=record.initial_partition_count,
            undeleted_partition_count=record.undeleted_partition_count,
            leader_epochs=(),
            replication_factor=record.replication_factor,
        )

    def _partition(self, record: PartitionRecord) -> None:
        if not self._partitions_of(record.topic_id).create(record):
            raise self._out_of_turn(record.topic_id, record.partition_id)

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        if not self._partitions_of(record.topic_id).assign(record):
            raise self._contradiction(f"change of an unknown partition: partition={record.partition_id}")

    def _partition_count(self, record: PartitionCountRecord) -> None:
        if not self._partitions_of(record.topic_id).set_count(record):
            raise self._contradiction(f"count cannot be: topic_id={record.topic_id} {record.undeleted_partition_count}")

    def _mark_partition(self, record: MarkPartitionRecord) -> None:
        if not self._partitions_of(record.topic_id).mark(record):
            raise self._contradiction(f"mark of a partition that takes records: partition={record.partition_id}")

    def _remove_partition(self, record: RemovePartitionRecord) -> None:
        if not self._partitions_of(record.topic_id).remove(record.partition_id):
            raise self._contradiction(f"removal of a partition that is not marked: partition={record.partition_id}")

    def _double_topic(self, record: DoubleTopicRecord) -> None:
        if not self._partitions_of(record.topic_id).announce(record):
            raise self._contradiction(f"no doubling: topic_id={record.topic_id} count={record.partition_count}")

    def _split_partition(self, record: SplitPartitionRecord) -> None:
        if not self._partitions_of(record.topic_id).split(record):
            raise self._contradiction(f"split of a partition that cannot be: partition={record.partition_id}")

    def _halve_topic(self, record: HalveTopicRecord) -> None:
        if not self._partitions_of(record.topic_id).halve(record):
            raise self._contradiction(f"halving that cannot be: topic_id={record.topic_id} {record.partition_count}")

    def _alias_partition(self, record: AliasPartitionRecord) -> None:
        if not self._partitions_of(record.topic_id).alias(record):
            raise self._contradiction(f"alias of a partition that cannot be: partition={record.partition_id}")

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._writable_topics().pop(record.topic_id, None)
        if topic is None:
            raise self._contradiction(f"removal of an unknown topic: topic_id={record.topic_id}")
        self._changing.pop(record.topic_id, None)
        self._deleted_names.keep(topic.name, self.offset, DELETED_NAMES_MAX)
        self._configs.pop((TOPIC_RESOURCE, topic.name), None)
        for node_id, failed in list(self._failed.items()):
            if record.topic_id in failed:
                self._set_failed(node_id, {key: value for key, value in failed.items() if key != record.topic_id})

    def _known_topic(self, topic_id: uuid.UUID) -> TopicImage:
        topic = self._topics.get(topic_id)
        if topic is None:
            raise self._contradiction(f"partition of an unknown topic: topic_id={topic_id}")
        return topic

    def _partitions_of(self, topic_id: uuid.UUID) -> ChangingPartitions:
        if topic_id not in self._changing:
            self._changing[topic_id] = ChangingPartitions(self._known_topic(topic_id))
        return self._changing[topic_id]

    # -- agents

    def _register(self, record: RegisterBrokerRecord) -> None:
        if not record.end_points:
            raise self._contradiction(f"agent without an end point: node_id={record.broker_id}")
        self._unregistered.pop(record.broker_id, None)
        self._moves_leaders = True
        self._agents[record.broker_id] = AgentImage(
            node_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            host=record.end_points[0].host,
            port=record.end_points[0].port,
            rack=record.rack,
            fenced=True,
            listeners=tuple(Listener(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            features=MappingProxyType(
                {f.name: FeatureRange(f.min_version, f.max_version) for f in record.features or ()}
            ),
        )

    def _unregister(self, record: UnregisterBrokerRecord) -> None:
        del self._agents[self._agent(record.broker_id, record.broker_epoch).node_id]
        self._failed.pop(record.broker_id, None)
        self._unregistered.keep(record.broker_id, record.broker_epoch, UNREGISTERED_MAX)

    def _fence(self, record: FenceBrokerRecord) -> None:
        agent = self._agent(record.broker_id, record.broker_epoch)
        self._agents[agent.node_id] = replace(agent, fenced=True, hidden=False)

    def _unfence(self, record: UnfenceBrokerRecord) -> None:
        agent = self._agent(record.broker_id, record.broker_epoch)
        self._agents[agent.node_id] = replace(agent, fenced=False)

    def _leave(self, record: ControlledShutdownRecord) -> None:
        agent = self._agent(record.broker_id, record.broker_epoch)
        self._agents[agent.node_id] = replace(agent, leaving=True)

    def _hide(self, record: HideBrokerRecord) -> None:
        agent = self._agent(record.broker_id, record.broker_epoch)
        self._agents[agent.node_id] = replace(agent, hidden=True)

    def _show(self, record: ShowBrokerRecord) -> None:
        agent = self._agent(record.broker_id, record.broker_epoch)
        self._agents[agent.node_id] = replace(agent, hidden=False)

    def _agent(self, node_id: int, broker_epoch: int) -> AgentImage:
        """Return the agent that a record changes or unregisters."""
        self._moves_leaders = True
        agent = self._agents.get(node_id)
        if agent is None or agent.broker_epoch != broker_epoch:
            raise self._contradiction(f"agent is not registered so: node_id={node_id} broker_epoch={broker_epoch}")
        return agent

    def _failed_replicas(self, record: FailedReplicasRecord) -> None:
        """All that failed at the agent; none takes the entry away."""
        self._set_failed(record.broker_id, {topic.topic_id: topic.partitions for topic in record.topics})

    def _set_failed(self, node_id: int, failed: dict[uuid.UUID, tuple[int, ...]]) -> None:
        self._failed.pop(node_id, None)
        if failed:
            self._failed[node_id] = MappingProxyType(failed)

    # -- settings, features, security; a removal of what is not there changes nothing

    def _config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        set_value(self._configs, resource, record.name, record.value)

    def _quota(self, record: QuotaRecord) -> None:
        entity = tuple(sorted(record.entity, key=lambda part: part.entity_type))
        set_value(self._quotas, entity, record.key, None if record.remove else record.value)

    def _feature(self, record: FeatureLevelRecord) -> None:
        refuse_unknown_format(record)
        self._features[record.name] = FeatureRange(record.min_feature_level, record.max_feature_level)
        self._moves_leaders |= record.name in LEADER_FEATURES
        if record.name == METADATA_FORMAT and self._has_keys_only() and self._passwords_until:
            self._passwords_until = self.offset
            self._credentials = {user: tuple(map(as_keys, held)) for user, held in self._credentials.items()}

        if record.name == SEALED_SECRETS and self._credentials:
            self._passwords_until = self.offset

    def _remove_feature(self, record: RemoveFeatureLevelRecord) -> None:
        self._features.pop(record.name, None)
        self._moves_leaders |= record.name in LEADER_FEATURES

    def _access_control(self, record: AccessControlRecord) -> None:
        self._writable_acls().add(record)

    def _remove_access_control(self, record: RemoveAccessControlRecord) -> None:
        named = {field.name: getattr(record, field.name) for field in fields(AccessControlRecord)}
        self._writable_acls().discard(AccessControlRecord(**named))

    def _credential(self, record: UserScramCredentialRecord) -> None:
        held: tuple[CredentialInfo | ScramKeys, ...] = record.credential_infos
        self._credentials[record.user_name] = tuple(map(as_keys, held)) if self._has_keys_only() else held
        self._passwords_until = self.offset + 1

    def _keys(self, record: UserScramKeysRecord) -> None:
        self._credentials[record.user_name] = record.keys

    def _has_keys_only(self) -> bool:
        active = self._features.get(METADATA_FORMAT)
        return active is not None and active.max_level >= SCRAM_KEYS_FORMAT

    def _remove_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        self._credentials.pop(record.user_name, None)

    def _token(self, record: DelegationTokenRecord) -> None:
        self._tokens[record.token_id] = record

    def _remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        self._tokens.pop(record.token_id, None)

    def _out_of_turn(self, topic_id: uuid.UUID, index: int) -> CorruptError:
        return self._contradiction(f"partition out of turn: topic={self._topics[topic_id].name} partition={index}")

    def _contradiction(self, event: str) -> CorruptError:
        return CorruptError(f"{event} offset={self.offset}")


_HANDLERS: Mapping[type[MetadataRecord], Callable[[ImageBuilder, Any], None]] = {
    TopicRecord: ImageBuilder._topic,
    PartitionRecord: ImageBuilder._partition,
    PartitionChangeRecord: ImageBuilder._partition_change,
    PartitionCountRecord: ImageBuilder._partition_count,
    MarkPartitionRecord: ImageBuilder._mark_partition,
    RemovePartitionRecord: ImageBuilder._remove_partition,
    SplitPartitionRecord: ImageBuilder._split_partition,
    DoubleTopicRecord: ImageBuilder._double_topic,
    HalveTopicRecord: ImageBuilder._halve_topic,
    AliasPartitionRecord: ImageBuilder._alias_partition,
    RemoveTopicRecord: ImageBuilder._remove_topic,
    ConfigRecord: ImageBuilder._config,
    RegisterBrokerRecord: ImageBuilder._register,
    UnregisterBrokerRecord: ImageBuilder._unregister,
    FenceBrokerRecord: ImageBuilder._fence,
    UnfenceBrokerRecord: ImageBuilder._unfence,
    ControlledShutdownRecord: ImageBuilder._leave,
    HideBrokerRecord: ImageBuilder._hide,
    ShowBrokerRecord: ImageBuilder._show,
    FailedReplicasRecord: ImageBuilder._failed_replicas,
    QuotaRecord: ImageBuilder._quota,
    FeatureLevelRecord: ImageBuilder._feature,
    RemoveFeatureLevelRecord: ImageBuilder._remove_feature,
    AccessControlRecord: ImageBuilder._access_control,
    RemoveAccessControlRecord: ImageBuilder._remove_access_control,
    UserScramCredentialRecord: ImageBuilder._credential,
    UserScramKeysRecord: ImageBuilder._keys,
    RemoveUserScramCredentialRecord: ImageBuilder._remove_credential,
    DelegationTokenRecord: ImageBuilder._token,
    RemoveDelegationTokenRecord: ImageBuilder._remove_token,
}
