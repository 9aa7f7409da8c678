"""Feature levels: which records may be written, and how a level is raised or lowered (KIP-584).

Place: before records are appended, when the log is read, and behind the UpdateFeatures request.
Invariant: a record is written only at a metadata.format that has it, and a format is active only while
every registered agent supports it: so no agent reads a record that it does not know.
    format 1  KIP-631's 15 record types, in version 0; a log that says nothing
    format 2  and our additional types (metastore/log/own_records.py) to 104, in version 0
    format 3  and agents that are hidden and shown again
    format 4  and leader epochs that rise with a topic's count, marked and removed partitions, aliases; keys of SCRAM
              instead of salted passwords; new clusters
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from headrace.config.table_configs import TABLE_PREFIX
from headrace.metastore.api.agents import (
    CHOSEN_FEATURES,
    CLUSTER_LINKS,
    COMMIT_SHARDS,
    KAFKA_FEATURES,
    LOW_LATENCY,
    METADATA_FORMAT,
    OPTIONAL_FEATURES,
    SEALED_SECRETS,
    SEGMENT_KEYS,
    SHARE_VERSION,
    STREAMS_VERSION,
    SUPPORTED_FEATURES,
    TOPIC_TABLES,
    TRANSACTION_VERSION,
)
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, FeatureLevelRecord, PartitionRecord
from headrace.metastore.log.own_records import (
    OWN_TYPES,
    AliasPartitionRecord,
    DoubleTopicRecord,
    HalveTopicRecord,
    HideBrokerRecord,
    MarkPartitionRecord,
    PartitionCountRecord,
    RemoveFeatureLevelRecord,
    RemovePartitionRecord,
    ShowBrokerRecord,
    SplitPartitionRecord,
    UserScramKeysRecord,
)
from headrace.storage.errors import InvalidError, UnsupportedFeatureError

PARTITION_CHANGES_FORMAT = 4
"""The metadata.format with which leader epochs rise when a count changes, and partitions may be removed."""
SCRAM_KEYS_FORMAT = 4
"""The metadata.format with which no salted password is in the log: replay.py derives the keys of those before it."""
_KNOWN = {**SUPPORTED_FEATURES, **OPTIONAL_FEATURES, **CHOSEN_FEATURES}
_ONLY_RISE = (
    SEGMENT_KEYS,
    SEALED_SECRETS,
    COMMIT_SHARDS,
    SHARE_VERSION,
    STREAMS_VERSION,
    LOW_LATENCY,
    CLUSTER_LINKS,
)
_PARTITION_CHANGES = (
    PartitionCountRecord,
    MarkPartitionRecord,
    RemovePartitionRecord,
    SplitPartitionRecord,
    DoubleTopicRecord,
    HalveTopicRecord,
    AliasPartitionRecord,
)


def required_format(records: Iterable[MetadataRecord]) -> int:
    """The lowest metadata.format that has all of these."""
    return max(map(_format_of, records), default=1)


def _format_of(record: MetadataRecord) -> int:
    if isinstance(record, _PARTITION_CHANGES):
        return PARTITION_CHANGES_FORMAT
    if isinstance(record, UserScramKeysRecord):
        return SCRAM_KEYS_FORMAT
    if isinstance(record, PartitionRecord) and (record.source >= 0 or record.before_deletion or record.is_removed):
        return PARTITION_CHANGES_FORMAT
    if isinstance(record, HideBrokerRecord | ShowBrokerRecord):
        return 3
    return 2 if record.record_type >= OWN_TYPES else 1


def refuse_unknown_format(record: FeatureLevelRecord) -> None:
    """UnsupportedFeatureError when from here on the log may hold records that this software does not know."""
    known = SUPPORTED_FEATURES[METADATA_FORMAT]
    level = record.max_feature_level
    if record.name == METADATA_FORMAT and not known.min_level <= level <= known.max_level:
        raise UnsupportedFeatureError(
            f"unknown metadata.format: level={level} known={known.min_level}..{known.max_level}: upgrade this agent"
        )


def change_feature(image: MetadataImage, name: str, level: int, *, allow_downgrade: bool) -> MetadataRecord | None:
    """The record that makes `level` the feature's active one, 0 to disable it; None when it is so already.

    UnsupportedFeatureError when this software or a registered agent lacks the level; InvalidError for an
    unknown feature and for a downgrade that was not asked for.
    """
    if (fixed := KAFKA_FEATURES.get(name)) is not None:
        if level != fixed.max_level:
            raise UnsupportedFeatureError(f"level cannot change: feature={name} level={fixed.max_level} wanted={level}")
        return None
    if name not in _KNOWN:
        raise InvalidError(f"unknown feature: feature={name}")
    active = image.features.get(name)
    current = image.metadata_format if name == METADATA_FORMAT else 0 if active is None else active.max_level
    if level == current:
        return None
    if level < current and name in _ONLY_RISE:
        raise InvalidError(f"level cannot go down: feature={name} active={current}")
    if level < current:
        _refuse_what_older_agents_lack(image, name, level, current)
    if name == SEALED_SECRETS and image.metadata_format < SCRAM_KEYS_FORMAT:
        raise InvalidError(f"raise {METADATA_FORMAT} to {SCRAM_KEYS_FORMAT} first: before it passwords are not sealed")
    if level < current and not allow_downgrade:
        raise InvalidError(f"level would go down, which was not asked for: feature={name} active={current}")
    _refuse_unsupported(image, name, level)
    if level == 0:
        return RemoveFeatureLevelRecord(name=name)
    return FeatureLevelRecord(name=name, min_feature_level=_KNOWN[name].min_level, max_feature_level=level)


def _changed_topics(image: MetadataImage) -> list[str]:
    """Some topics with partitions that only format 4 describes."""
    changed = (
        t.name
        for t in image.topics_by_id.values()
        if t.created_from or t.before_deletion or t.removed or t.doubling >= 0
    )
    return list(islice(changed, 3))


def _refuse_what_older_agents_lack(image: MetadataImage, name: str, level: int, current: int) -> None:
    """InvalidError if the cluster has something that agents without the level misread."""
    if level < 1 <= current and name == TRANSACTION_VERSION:
        raise InvalidError(
            f"level cannot go to 0, as older agents show aborted records: feature={name} active={current}"
        )
    if name == METADATA_FORMAT and level < PARTITION_CHANGES_FORMAT and _changed_topics(image):
        raise InvalidError(
            f"level cannot go down, as older agents do not know changed partitions: feature={name} active={current}"
            f" topics={_changed_topics(image)}"
        )
    if level < SCRAM_KEYS_FORMAT <= current and name == METADATA_FORMAT and image.scram_credentials:
        raise InvalidError(
            f"level cannot go down, as older agents do not know the keys of users: feature={name} active={current}"
            f" users={list(islice(image.scram_credentials, 3))}"
        )
    if name == TOPIC_TABLES:
        _refuse_while_topics_have_tables(image)


def _refuse_while_topics_have_tables(image: MetadataImage) -> None:
    found = (
        resource[1]
        for resource, configs in image.configs.items()
        if resource[0] == TOPIC_RESOURCE and any(name.startswith(TABLE_PREFIX) for name in configs)
    )
    if topics := list(islice(found, 3)):
        raise InvalidError(
            f"level cannot go down, as older agents do not know the topic configs {TABLE_PREFIX}*:"
            f" feature={TOPIC_TABLES} topics={topics}"
        )


def _refuse_unsupported(image: MetadataImage, name: str, level: int) -> None:
    supported = _KNOWN[name]
    if (level == 0 and name == METADATA_FORMAT) or (level and not supported.min_level <= level <= supported.max_level):
        raise UnsupportedFeatureError(
            f"level is not supported: feature={name} level={level} known={supported.min_level}..{supported.max_level}"
        )
    for agent in image.agents.values():
        own = agent.features.get(name)
        if level and (own is None or not own.min_level <= level <= own.max_level):
            raise UnsupportedFeatureError(
                f"an agent does not support the level: feature={name} level={level} node_id={agent.node_id}"
            )
