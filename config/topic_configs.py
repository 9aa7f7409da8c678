"""Kafka's topic configs: type, bounds and default of each, and its effect in Headrace.

Place: CreateTopics and the config requests validate with it; produce, retention and compaction use it;
docs/operate/TOPIC_CONFIGS.md is generated from it (config/topic_docs.py).
Invariant: a config works; or any value but the default is refused with a reason; or it says why it is accepted: what
it promises always holds, or it tunes what extents replace. None is silently ignored.
Source: Kafka 4 topic configuration reference; LogConfig's and ServerTopicConfigSynonyms' names for brokers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.config import table_configs
from headrace.config.config_definition import INT_MAX, LONG_MAX, ConfigDefinition, ConfigEffect, Synonym, list_items

_REPLICA = re.compile(r"\d+:\d+", re.ASCII)
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


def why_invalid(name: str, value: str | None) -> str | None:
    """Return None if a topic can have this config, else a message that names it."""
    known = TOPIC_CONFIGS.get(name)
    if known is None:
        return f"unknown topic config name: {name}"
    if value is None:
        return f"null value not supported for topic configs: {name}"
    reason = known.why_invalid(value.strip())
    return None if reason is None else f"invalid value for topic config {name}: {value!r} is {reason}"


def why_not_with(configs: Mapping[str, str], *, has_topic_tables: bool, has_low_latency: bool) -> str | None:
    """Return None if a topic of a cluster with these feature levels can have the configs."""
    if not has_low_latency and configs.get(LOW_LATENCY_ENABLE, "false").lower() == "true":
        return (
            f"{LOW_LATENCY_ENABLE} needs the feature level low.latency=1: `headrace features upgrade --feature"
            " low.latency=1`"
        )
    return table_configs.why_not_with(configs, has_feature=has_topic_tables)


def _int(default: int, meaning: str, *synonyms: Synonym, low: int = 0, high: int = INT_MAX) -> ConfigDefinition:
    return ConfigDefinition(str(default), "int", meaning, ConfigEffect.WORKS, synonyms, low, high)


def _long(default: int, meaning: str, *synonyms: Synonym, low: int = 0) -> ConfigDefinition:
    return ConfigDefinition(str(default), "long", meaning, ConfigEffect.WORKS, synonyms, low, LONG_MAX)


def _met(config: ConfigDefinition) -> ConfigDefinition:
    """Return what it promises holds here with any value."""
    return config._replace(effect=ConfigEffect.MET)


def _replaced(config: ConfigDefinition) -> ConfigDefinition:
    """MirrorMaker copies these from its source."""
    return config._replace(effect=ConfigEffect.REPLACED)


def _fixed(config: ConfigDefinition) -> ConfigDefinition:
    """Tools may set the default, and nothing else; its meaning is the reason."""
    return config._replace(meaning="", why_fixed=config.meaning)


def _throttled_replicas() -> ConfigDefinition:
    """kafka-reassign-partitions --throttle sets it before a reassignment, and removes it afterwards."""
    return _met(ConfigDefinition("", "list", f"{NO_REPLICAS}: a reassignment moves none", check=_why_no_replicas))


def _why_no_replicas(value: str) -> str | None:
    """Kafka's ThrottledReplicaListValidator."""
    items = list_items(value)
    if items == ["*"] or all(_REPLICA.fullmatch(item) for item in items):
        return None
    return "not * or a list of [partition]:[broker id]"


def _only_false(reason: str, *synonyms: Synonym) -> ConfigDefinition:
    return ConfigDefinition("false", "boolean", "", synonyms=synonyms, refused={"true": reason})


LOW_LATENCY_ENABLE = "low.latency.enable"
LINK_NAME = "link.name"
"""The config that says of which link a topic is a copy; only links set and remove it."""
_COMPACTED = "On topics with cleanup.policy=compact:"
_NO_LOCAL_LOG = "no part of a topic is on local disks"
NO_REPLICAS = "the object store replicates: agents copy no data"
_ONE_LEVEL = "each codec has one fixed level here"
_NO_INDEX_FILES = "a partition has no index files"
_EXTENTS = "retention deletes an extent (8 MiB, or one large batch) at a time"
_IN_BUCKET = "all data goes into object storage by itself"

TOPIC_CONFIGS: dict[str, ConfigDefinition] = {
    "cleanup.policy": ConfigDefinition(
        "delete",
        "list",
        "With delete, records are deleted by retention.ms and retention.bytes. With compact, a record is deleted once a"
        " later one has its key; every record must have a key. With both, both; if empty, all records are kept.",
        synonyms=(Synonym("log.cleanup.policy"),),
        allowed=("compact", "delete"),
    ),
    "compression.gzip.level": _fixed(_int(-1, _ONE_LEVEL, Synonym("compression.gzip.level"), low=-1, high=9)),
    "compression.lz4.level": _fixed(_int(9, _ONE_LEVEL, Synonym("compression.lz4.level"), low=1, high=17)),
    "compression.type": ConfigDefinition(
        "producer",
        "string",
        "Batches are stored and read as their producer sent them, until compaction merges them into larger ones"
        " (level 2: minutes to hours later) with this codec. A batch that it cannot open (transactional, too large)"
        " keeps its codec.",
        ConfigEffect.LATER,
        (Synonym("compression.type"),),
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    "compression.zstd.level": _fixed(_int(3, _ONE_LEVEL, Synonym("compression.zstd.level"), low=-131_072, high=22)),
    "delete.retention.ms": _long(
        86_400_000,
        f"{_COMPACTED} a record without a value, which deletes its key, is kept this long after it was first cleaned.",
        Synonym("log.cleaner.delete.retention.ms"),
    ),
    "enable.ordered.delivery": ConfigDefinition(
        "true",
        "boolean",
        "With false, headrace.client reads each partition without waiting for others while the number of partitions"
        " changes.",
        ConfigEffect.WORKS,
    ),
    "file.delete.delay.ms": _fixed(
        _long(
            60_000,
            "a segment file holds many topics: set file.delete.delay.ms of the cluster",
            Synonym("log.segment.delete.delay.ms"),
        )
    ),
    "flush.messages": _met(
        _long(
            LONG_MAX,
            "nothing is acknowledged before it is stored",
            Synonym("log.flush.interval.messages"),
            low=1,
        )
    ),
    "flush.ms": _met(_long(LONG_MAX, "nothing is acknowledged before it is stored", Synonym("log.flush.interval.ms"))),
    "follower.replication.throttled.replicas": _throttled_replicas(),
    "headrace.partitioner": ConfigDefinition(
        "murmur2",
        "string",
        "How producers that send no partition counts place keys: murmur2 is the default of Kafka's Java client,"
        " franz-go, kafkajs, aiokafka and kafka-python, crc32 of librdkafka, fnv1a of sarama. While the topic doubles,"
        " agents look by it for keys that moved.",
        allowed=("crc32", "fnv1a", "murmur2"),
    ),
    "index.interval.bytes": _fixed(_int(4_096, _NO_INDEX_FILES, Synonym("log.index.interval.bytes"))),
    "leader.replication.throttled.replicas": _throttled_replicas(),
    LINK_NAME: ConfigDefinition(
        "",
        "string",
        "The link that keeps the topic as a copy of another cluster's (docs/operate/LINKS.md); empty: none. Only links"
        " set and remove it.",
        check=lambda value: None if not value else "not to be set: headrace link create makes copies",
    ),
    "local.retention.bytes": _fixed(_long(-2, _NO_LOCAL_LOG, Synonym("log.local.retention.bytes"), low=-2)),
    "local.retention.ms": _fixed(_long(-2, _NO_LOCAL_LOG, Synonym("log.local.retention.ms"), low=-2)),
    LOW_LATENCY_ENABLE: ConfigDefinition(
        "false",
        "boolean",
        "With true, small requests of producers are acknowledged in a few milliseconds: their bytes go into the"
        " metastore first, and into the bucket about a minute later (docs/operate/LOW_LATENCY.md). Needs the feature"
        " level low.latency=1.",
        synonyms=(Synonym("low.latency.enable"),),
    ),
    "max.compaction.lag.ms": _long(
        LONG_MAX,
        f"{_COMPACTED} after this time a record may be cleaned, however little of its partition is dirty.",
        Synonym("log.cleaner.max.compaction.lag.ms"),
        low=1,
    ),
    "max.message.bytes": _int(
        1_048_588, "A larger batch is refused with MESSAGE_TOO_LARGE.", Synonym("message.max.bytes")
    ),
    "message.timestamp.after.max.ms": _long(
        HOUR_MS,
        "A batch with a record timestamp further ahead of the agent's clock is refused with INVALID_TIMESTAMP.",
        Synonym("log.message.timestamp.after.max.ms"),
    ),
    "message.timestamp.before.max.ms": _long(
        LONG_MAX,
        "A batch with a record timestamp further behind the agent's clock is refused with INVALID_TIMESTAMP."
        " If set, agents must open every batch of a producer.",
        Synonym("log.message.timestamp.before.max.ms"),
    ),
    "message.timestamp.type": ConfigDefinition(
        "CreateTime",
        "string",
        "LogAppendTime: the agent that receives a batch sets the timestamp to its own time.",
        synonyms=(Synonym("log.message.timestamp.type"),),
        allowed=("CreateTime", "LogAppendTime"),
    ),
    "min.cleanable.dirty.ratio": ConfigDefinition(
        "0.5",
        "double",
        f"{_COMPACTED} a partition is cleaned when more than this share of its bytes was never cleaned.",
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
        low=0,
        high=1,
    ),
    "min.compaction.lag.ms": _long(
        0,
        f"{_COMPACTED} a record is kept at least this long.",
        Synonym("log.cleaner.min.compaction.lag.ms"),
    ),
    "min.insync.replicas": _met(
        _int(
            1,
            "every acknowledged batch is stored, and its place is in the metastore: no replica can be missing",
            Synonym("min.insync.replicas"),
            low=1,
        )
    ),
    "preallocate": _only_false(_NO_LOCAL_LOG, Synonym("log.preallocate")),
    "remote.log.copy.disable": _only_false(_IN_BUCKET),
    "remote.log.delete.on.disable": _only_false(_IN_BUCKET),
    "remote.storage.enable": _only_false(_IN_BUCKET),
    "retention.bytes": _long(
        -1,
        "A partition above this size loses its oldest records; -1: no limit.",
        Synonym("log.retention.bytes"),
        low=-1,
    ),
    "retention.ms": _long(
        604_800_000,
        "Records older than this are deleted; -1: none.",
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
        low=-1,
    ),
    "segment.bytes": _int(
        1_073_741_824,
        f"{_COMPACTED} the active part of a partition, which is never cleaned, ends at this size.",
        Synonym("log.segment.bytes"),
        low=14,
    ),
    "segment.index.bytes": _replaced(_int(10_485_760, _EXTENTS, Synonym("log.index.size.max.bytes"), low=4)),
    "segment.jitter.ms": _replaced(_long(0, _EXTENTS, Synonym("log.roll.jitter.ms"))),
    "segment.ms": _long(
        604_800_000,
        f"{_COMPACTED} the active part of a partition, which is never cleaned, ends when its first record is this old.",
        Synonym("log.roll.ms"),
        low=1,
    ),
    **table_configs.TABLE_CONFIGS,
    "unclean.leader.election.enable": _only_false(
        "no leader can lose data",
        Synonym("unclean.leader.election.enable"),
    ),
}

BROKER_DEFAULTS: dict[str, str] = {
    config.synonyms[0].name: name for name, config in TOPIC_CONFIGS.items() if config.synonyms
}
"""Broker config that can change at run time -> the topic config for which it is the cluster's default."""
