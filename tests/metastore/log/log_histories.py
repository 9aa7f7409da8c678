"""Random metadata logs that a cluster could have written, with every kind of record in them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import (
    AccessControlRecord,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    CredentialInfo,
    DelegationTokenRecord,
    EntityData,
    FailedReplicasRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    QuotaRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    TopicWithFailures,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from headrace.metastore.log.own_records import (
    AliasPartitionRecord,
    ControlledShutdownRecord,
    HalveTopicRecord,
    HideBrokerRecord,
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemoveUserScramCredentialRecord,
    ShowBrokerRecord,
    UserScramKeysRecord,
)
from headrace.metastore.log.records import change_records, encode_record, split_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.scram_keys import as_keys
from headrace.metastore.partitions.changes import change_count, halve, removals
from headrace.metastore.partitions.placement import is_power_of_two_times
from headrace.metastore.partitions.topic_partitions import Split, TopicPartitions


def topic_records(topic_id: uuid.UUID, name: str, count: int, factor: int = 1) -> list[MetadataRecord]:
    """A new topic and its partitions; the leader epoch of partition i is i + 1."""
    own = TopicRecord(
        topic_name=name,
        topic_id=topic_id,
        initial_partition_count=count,
        undeleted_partition_count=count,
        replication_factor=factor,
    )
    return [own, *(partition_record(topic_id, index) for index in range(count))]


def partition_record(topic_id: uuid.UUID, index: int) -> PartitionRecord:
    """One without preferred agents."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=(),
        isr=(),
        removing_replicas=(),
        adding_replicas=(),
        leader=-1,
        leader_epoch=index + 1,
    )


def agent_record(node_id: int, epoch: int, port: int = 9092) -> RegisterBrokerRecord:
    """A registration of rack r that supports every format so far."""
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=uuid.UUID(int=epoch),
        broker_epoch=epoch,
        end_points=(BrokerEndpoint(name="PLAINTEXT", host="h", port=port, security_protocol=0),),
        features=(BrokerFeature(name="metadata.format", min_version=1, max_version=2),),
        rack="r",
    )


class History:
    """A growing log. Each step appends what is possible then."""

    def __init__(self, rng: random.Random) -> None:
        self.records: list[MetadataRecord] = []
        self._rng = rng
        self._topics: dict[uuid.UUID, tuple[str, int]] = {}
        self._agents: dict[int, int] = {}
        self._steps: list[Callable[[], list[MetadataRecord]]] = [
            self._create,
            self._create,
            self._delete,
            self._change_count,
            self._change_count,
            self._remove_partitions,
            self._split,
            self._halve,
            self._halve,
            self._reassign,
            self._configure,
            self._register,
            self._register,
            self._move_agent,
            self._unregister,
            self._access,
            self._credentials,
            self._tokens,
            self._quotas,
            self._features,
            self._failures,
        ]

    def step(self) -> None:
        """Append the records of one change; sometimes there is nothing to change."""
        self.records += self._rng.choice(self._steps)()

    def framed(self) -> list[bytes]:
        """The log as it is stored."""
        return [encode_record(record) for record in self.records]

    def _create(self) -> list[MetadataRecord]:
        topic_id, name = uuid.UUID(int=self._rng.getrandbits(128)), f"t{len(self.records)}"
        self._topics[topic_id] = (name, self._rng.randint(1, 5))
        return topic_records(topic_id, *self._topics[topic_id], factor=1 + len(self.records) % 4)

    def _delete(self) -> list[MetadataRecord]:
        if not self._topics:
            return []
        gone = self._rng.choice(sorted(self._topics))
        del self._topics[gone]
        return [RemoveTopicRecord(topic_id=gone)]

    def _change_count(self) -> list[MetadataRecord]:
        """Change the count in either direction; sometimes the plain way of the formats below 4."""
        if not self._topics:
            return []
        topic = apply(MetadataImage(), self.framed()).topics_by_id[self._rng.choice(sorted(self._topics))]
        if not topic.created_from and not topic.removed and self._rng.random() < 0.2:
            return [partition_record(topic.topic_id, len(topic.leader_epochs))]
        counts = topic.ordered_partitions
        if counts.is_halving:
            return []
        most = counts.undeleted if counts.marked else counts.initial + 6
        wanted = 2 * counts.undeleted if counts.has_aliases else self._rng.randint(counts.initial, most)
        change = change_count(counts, wanted)
        return [] if change is None else change_records(topic.topic_id, counts.initial, change)

    def _remove_partitions(self) -> list[MetadataRecord]:
        """Some of the marked ones of some topic."""
        topics = [t for t in apply(MetadataImage(), self.framed()).topics_by_number.values() if t.marked]
        if not topics:
            return []
        topic = self._rng.choice(topics)
        gone = removals(topic.ordered_partitions, topic.marked)
        return [
            record
            for each in gone[: self._rng.randint(1, 4)]
            for record in change_records(topic.topic_id, topic.initial_partition_count, each)
        ]

    def _split(self) -> list[MetadataRecord]:
        """A partition in two, or the boundary of one that is."""
        topics = [t for t in apply(MetadataImage(), self.framed()).topics_by_number.values() if t.created_from]
        if not topics:
            return []
        topic = self._rng.choice(topics)
        child, (parent, _) = self._rng.choice(sorted(topic.created_from.items()))
        known = topic.splits.get(parent, Split(child))
        if child >= topic.undeleted_partition_count or known.boundary is not None:
            return []
        boundary = self._rng.choice((None, 0, 1 << 40))
        return [split_record(topic.topic_id, parent, known._replace(boundary=boundary))]

    def _halve(self) -> list[MetadataRecord]:
        """The next step of a topic that halves, or can: the beginning, aliases, the count, the end."""
        topics = apply(MetadataImage(), self.framed()).topics_by_number.values()
        able = [t for t in topics if t.halving >= 0 or (not t.marked and _halves(t.ordered_partitions))]
        if not able:
            return []
        topic = self._rng.choice(able)
        before, topic_id, count = topic.ordered_partitions, topic.topic_id, topic.halving
        if count < 0:
            return [HalveTopicRecord(topic_id=topic_id, partition_count=before.undeleted // 2)]
        children = [index for index in range(count, 2 * count) if index not in topic.aliases]
        if children:
            some = self._rng.sample(children, self._rng.randint(1, len(children)))
            return [AliasPartitionRecord(partition_id=child, topic_id=topic_id, parent=child - count) for child in some]
        if before.undeleted > count:
            return change_records(topic_id, before.initial, halve(before._replace(is_halving=False)))
        return [HalveTopicRecord(topic_id=topic_id, partition_count=-1)]

    def _reassign(self) -> list[MetadataRecord]:
        if not self._topics:
            return []
        topic_id = self._rng.choice(sorted(self._topics))
        lists = [self._rng.choice((None, (), (1,), (2, 3))) for _ in range(3)]
        index = self._rng.randrange(self._topics[topic_id][1])
        return [
            PartitionChangeRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=lists[0],
                adding_replicas=lists[1],
                removing_replicas=lists[2],
            )
        ]

    def _configure(self) -> list[MetadataRecord]:
        name = self._rng.choice(sorted(name for name, _ in self._topics.values()) or ["t"])
        value = self._rng.choice((None, "1", "2"))
        return [ConfigRecord(resource_type=2, resource_name=name, name=self._rng.choice("xy"), value=value)]

    def _register(self) -> list[MetadataRecord]:
        node_id, epoch = self._rng.randint(0, 3), len(self.records)
        self._agents[node_id] = epoch
        return [agent_record(node_id, epoch)]

    def _move_agent(self) -> list[MetadataRecord]:
        if not self._agents:
            return []
        node_id = self._rng.choice(sorted(self._agents))
        kind = self._rng.choice(
            (FenceBrokerRecord, UnfenceBrokerRecord, ControlledShutdownRecord, HideBrokerRecord, ShowBrokerRecord)
        )
        return [kind(broker_id=node_id, broker_epoch=self._agents[node_id])]

    def _unregister(self) -> list[MetadataRecord]:
        if not self._agents:
            return []
        node_id, epoch = self._agents.popitem()
        return [UnregisterBrokerRecord(broker_id=node_id, broker_epoch=epoch)]

    def _access(self) -> list[MetadataRecord]:
        kind = self._rng.choice((AccessControlRecord, AccessControlRecord, RemoveAccessControlRecord))
        return [
            kind(
                resource_type=2,
                resource_name=self._rng.choice((None, "r")),
                pattern_type=3,
                principal=self._rng.choice(("User:a", "User:b")),
                host="*",
                operation=3,
                permission_type=3,
            )
        ]

    def _credentials(self) -> list[MetadataRecord]:
        user = self._rng.choice("ab")
        info = CredentialInfo(mechanism=1, salt=b"s", salted_password=b"p", iterations=self._rng.randint(4096, 9999))
        return [
            self._rng.choice(
                (
                    UserScramCredentialRecord(user_name=user, credential_infos=(info,)),
                    UserScramKeysRecord(user_name=user, keys=(as_keys(info),)),
                    RemoveUserScramCredentialRecord(user_name=user),
                )
            )
        ]

    def _tokens(self) -> list[MetadataRecord]:
        token_id = self._rng.choice("tu")
        token = DelegationTokenRecord(
            owner="o",
            renewers=("a",),
            issue_timestamp=len(self.records),
            max_timestamp=2,
            expiration_timestamp=3,
            token_id=token_id,
        )
        return [self._rng.choice((token, RemoveDelegationTokenRecord(token_id=token_id)))]

    def _quotas(self) -> list[MetadataRecord]:
        entity = [
            EntityData(entity_type="user", entity_name=self._rng.choice((None, "a"))),
            EntityData(entity_type="client-id", entity_name="c"),
        ][: self._rng.randint(1, 2)]
        self._rng.shuffle(entity)
        key, remove = self._rng.choice("kl"), self._rng.random() < 0.3
        return [QuotaRecord(entity=tuple(entity), key=key, value=self._rng.random(), remove=remove)]

    def _features(self) -> list[MetadataRecord]:
        level = FeatureLevelRecord(
            name=self._rng.choice(("metadata.format", "f")),
            min_feature_level=1,
            max_feature_level=self._rng.randint(1, 2),
        )
        return [self._rng.choice((level, RemoveFeatureLevelRecord(name="f")))]

    def _failures(self) -> list[MetadataRecord]:
        known = self._rng.sample(sorted(self._topics), min(len(self._topics), self._rng.randint(0, 2)))
        topics = tuple(TopicWithFailures(topic_id=topic_id, partitions=(0,)) for topic_id in known)
        return [FailedReplicasRecord(broker_id=self._rng.randint(0, 2), topics=topics)]


def _halves(partitions: TopicPartitions) -> bool:
    initial, count = partitions.initial, partitions.undeleted
    return count > initial and is_power_of_two_times(initial, count)


def random_history(seed: int, steps: int) -> list[bytes]:
    """A framed log of up to so many changes."""
    history = History(random.Random(seed))
    for _ in range(steps):
        history.step()
    return history.framed()
