"""Decides whether a topic may be created as requested: pure decisions on one image.

Place: under topic_creation.py, which appends the accepted topics. Kafka's rules for names are checked before a topic
is created, on request or automatically; a client's assignment of partitions to agents is checked for CreateTopics
and CreatePartitions.
Invariant: a decision depends only on its arguments, so it can be repeated on a newer image.
The replication factor is checked, stored and shown, and has no other effect: the object store replicates. The agents
of a manual assignment become the preferred ones, as a reassignment does (metastore/log/reassignment.py); any agent
serves any partition.
Source: Kafka's ReplicationControlManager (also validateManualPartitionAssignment), KIP-464 (-1 means the broker's
default).
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from headrace.agent.limits.client_texts import TOPIC_NAME_LENGTH_MAX, is_topic_name
from headrace.config import table_configs, topic_configs
from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.internal_topics import INTERNAL_TOPICS


def why_illegal(name: str) -> str | None:
    """Return None for a legal name, else the reason."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return "the topic name cannot be '.' or '..'"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the topic name is longer than {TOPIC_NAME_LENGTH_MAX} characters"
    if rendered_topic(name) is not None:
        return "the topic is reserved for the cluster"
    if name in INTERNAL_TOPICS:
        return f"the topic is internal to Kafka, and Headrace does not have it: {INTERNAL_TOPICS[name]}"
    if not is_topic_name(name):
        return "the topic name has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def why_unassignable(image: MetadataImage, assignments: Sequence[Sequence[int]]) -> str | None:
    """The reason for INVALID_REPLICA_ASSIGNMENT, or None. `assignments`: node ids per partition, preferred first."""
    live = {agent.node_id for agent in image.live_agents()}
    for brokers in assignments:
        if not brokers or len(set(brokers)) != len(brokers):
            return "each partition needs at least one broker, without duplicates"
        if len(brokers) != len(assignments[0]):
            return f"partitions differ in their number of replicas: {len(assignments[0])} and {len(brokers)}"
        unknown = [node_id for node_id in brokers if node_id not in image.agents]
        if unknown:
            return f"brokers are not registered: {unknown}"
        if live.isdisjoint(brokers):
            return f"all brokers of a partition are fenced or shutting down: {list(brokers)}"
    return None


PARTITIONS_PER_REQUEST_MAX = 10_000
"""Limit per request, as in Kafka's controller."""
USE_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic as requested by a client; -1 and empty mean the default.

    `topic_id` is the id that it gets if it is created. `assignments`: (partition index, broker ids).
    """

    name: str
    topic_id: uuid.UUID
    partition_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True, slots=True)
class TopicRefusal:
    """The reason why a topic is not created."""

    code: ErrorCode
    message: str
    limit: str = ""
    """The setting that limits it, if one does."""


@dataclass(frozen=True, slots=True)
class AcceptedTopic:
    """A topic that exists now, or may be appended."""

    topic: NewTopic
    replication_factor: int


Judgement = AcceptedTopic | TopicRefusal


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """num.partitions, default.replication.factor, max.topics, max.partitions and replication.factor.strict."""

    partition_count: int
    replication_factor: int
    topics_max: int = 10_000
    partitions_max: int = 200_000
    is_strict: bool = False
    """Whether a replication factor above the number of agents is refused."""

    @classmethod
    def of(cls, settings: Settings) -> TopicDefaults:
        """Read the settings of these names."""
        return cls(
            settings.num_partitions,
            settings.default_replication_factor,
            settings.max_topics,
            settings.max_partitions,
            settings.replication_factor_strict,
        )

    def for_automatic_creation(self) -> TopicDefaults:
        """Clients that only ask for metadata leave half of the limits to those who create topics on purpose."""
        return replace(self, topics_max=self.topics_max // 2, partitions_max=self.partitions_max // 2)


def judge(wanted: Sequence[WantedTopic], image: MetadataImage, defaults: TopicDefaults) -> list[Judgement]:
    """One judgement per topic of a request, in order. A topic that exists under its id is accepted."""
    repeats = Counter(topic.name for topic in wanted)
    lookalikes = _lookalikes([*image.topics_by_name, *repeats])
    judgements: list[Judgement] = []
    for topic in wanted:
        refusal = (
            _name_refusal(topic, image, repeats[topic.name], lookalikes[_flat(topic.name)])
            or _shape_refusal(topic, image)
            or _factor_refusal(topic, image, defaults)
            or _config_refusal(topic, image)
        )
        judgements.append(refusal or _accepted(topic, defaults))
    if sum(judged.topic.partition_count for judged in judgements if isinstance(judged, AcceptedTopic)) > (
        PARTITIONS_PER_REQUEST_MAX
    ):
        limit = TopicRefusal(ErrorCode.policy_violation, "excessively large number of partitions per request")
        return [limit if isinstance(judged, AcceptedTopic) else judged for judged in judgements]
    if full := why_too_many(image, _added(judgements, image), defaults):
        return [
            full if isinstance(judged, AcceptedTopic) and judged.topic.topic_id not in image.topics_by_id else judged
            for judged in judgements
        ]
    return judgements


def why_too_many(image: MetadataImage, added: tuple[int, int], defaults: TopicDefaults) -> TopicRefusal | None:
    """Return why the cluster takes no more topics or partitions, if so many of each are added."""
    topics, partitions = added
    if topics and len(image.topics_by_name) + topics > defaults.topics_max:
        return _full("max.topics", defaults.topics_max)
    if partitions and partitions + image_partitions(image) > defaults.partitions_max:
        return _full("max.partitions", defaults.partitions_max)
    return None


def _full(setting: str, most: int) -> TopicRefusal:
    return TopicRefusal(ErrorCode.policy_violation, f"the cluster may have no more: {setting}={most}", setting)


def image_partitions(image: MetadataImage) -> int:
    """Partitions of all topics."""
    return sum(topic.partition_count for topic in image.topics_by_number.values())


def _added(judgements: Iterable[Judgement], image: MetadataImage) -> tuple[int, int]:
    """(topics, partitions) that the accepted ones add to the image."""
    new = [
        judged.topic.partition_count
        for judged in judgements
        if isinstance(judged, AcceptedTopic) and judged.topic.topic_id not in image.topics_by_id
    ]
    return len(new), sum(new)


def _accepted(wanted: WantedTopic, defaults: TopicDefaults) -> AcceptedTopic:
    partition_count, replication_factor = wanted.partition_count, wanted.replication_factor
    if wanted.assignments:
        partition_count, replication_factor = len(wanted.assignments), len(wanted.assignments[0][1])
    if partition_count == USE_DEFAULT:
        partition_count = defaults.partition_count
    if replication_factor == USE_DEFAULT:
        replication_factor = defaults.replication_factor
    configs = {name: value.strip() for name, value in wanted.configs if value is not None}
    preferred = [brokers for _, brokers in sorted(wanted.assignments)]
    topic = NewTopic(wanted.name, wanted.topic_id, partition_count, configs, preferred, replication_factor)
    return AcceptedTopic(topic, replication_factor)


def _flat(name: str) -> str:
    """Metric names cannot distinguish '.' and '_'."""
    return name.replace(".", "_")


def _lookalikes(names: Iterable[str]) -> defaultdict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        found[_flat(name)].add(name)
    return found


def _name_refusal(wanted: WantedTopic, image: MetadataImage, repeats: int, lookalikes: set[str]) -> TopicRefusal | None:
    name = wanted.name
    if repeats > 1:
        return TopicRefusal(ErrorCode.invalid_request, f"duplicate topic name: {name}")
    if reason := why_illegal(name):
        return TopicRefusal(ErrorCode.invalid_topic_exception, reason)
    if (existing := image.topics_by_name.get(name)) and existing.topic_id != wanted.topic_id:
        return TopicRefusal(ErrorCode.topic_already_exists, f"topic '{name}' already exists")
    if others := lookalikes - {name}:
        return TopicRefusal(ErrorCode.invalid_topic_exception, f"topic '{name}' collides with topic '{min(others)}'")
    return None


def _shape_refusal(wanted: WantedTopic, image: MetadataImage) -> TopicRefusal | None:
    if wanted.assignments:
        return _assignment_refusal(wanted, image)
    if wanted.partition_count != USE_DEFAULT and wanted.partition_count < 1:
        return TopicRefusal(ErrorCode.invalid_partitions, "number of partitions must be -1 or larger than 0")
    if wanted.replication_factor != USE_DEFAULT and wanted.replication_factor < 1:
        return TopicRefusal(ErrorCode.invalid_replication_factor, "replication factor must be -1 or larger than 0")
    return None


def _factor_refusal(wanted: WantedTopic, image: MetadataImage, defaults: TopicDefaults) -> TopicRefusal | None:
    """Kafka's rule and text: registered agents count, fenced or not."""
    if not defaults.is_strict or wanted.assignments or wanted.topic_id in image.topics_by_id:
        return None
    factor = defaults.replication_factor if wanted.replication_factor == USE_DEFAULT else wanted.replication_factor
    if factor <= len(image.agents):
        return None
    message = (
        f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be"
        f" reached because only {len(image.agents)} broker(s) are registered."
    )
    return TopicRefusal(ErrorCode.invalid_replication_factor, message)


def _assignment_refusal(wanted: WantedTopic, image: MetadataImage) -> TopicRefusal | None:
    if wanted.partition_count != USE_DEFAULT or wanted.replication_factor != USE_DEFAULT:
        message = "with a manual assignment, partitions and replication factor must be -1"
        return TopicRefusal(ErrorCode.invalid_request, message)
    if sorted(index for index, _ in wanted.assignments) != list(range(len(wanted.assignments))):
        return TopicRefusal(ErrorCode.invalid_replica_assignment, "partitions must be numbered from 0 without gaps")
    is_created = wanted.topic_id in image.topics_by_id  # an append with a lost response: already accepted
    reason = None if is_created else why_unassignable(image, [brokers for _, brokers in wanted.assignments])
    return None if reason is None else TopicRefusal(ErrorCode.invalid_replica_assignment, reason)


def _config_refusal(wanted: WantedTopic, image: MetadataImage) -> TopicRefusal | None:
    reasons = (topic_configs.why_invalid(name, value) for name, value in wanted.configs)
    reason = next((reason for reason in reasons if reason), None)
    if reason is None:
        given = {name: value for name, value in wanted.configs if value is not None}
        reason = topic_configs.why_not_with(
            given, has_topic_tables=image.has_topic_tables, has_low_latency=image.has_low_latency
        )
        reason = reason or table_configs.why_not_named(wanted.name, {}, given)
    return None if reason is None else TopicRefusal(ErrorCode.invalid_config, reason)
