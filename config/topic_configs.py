"""Kafka's topic configs: type, bounds and default of each, what a value must look like, and what it does here.

Place: CreateTopics and the config requests judge by it; produce, retention and compaction act on it;
docs/TOPIC_CONFIGS.md is generated from it (config/docs.py).
Invariant: a config works, or is accepted and says why it has nothing to act on, or the value is refused
with a reason: none is silently ignored. A value that passed `why_invalid` can be parsed by whoever acts on it.
Pure; nothing is lost if the process dies.
Source: Kafka 4 topic configuration reference; LogConfig's and ServerTopicConfigSynonyms' names for brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


class Synonym(NamedTuple):
    """A broker config that gives a topic config its cluster-wide value: `factor` times its own."""

    name: str
    factor: int = 1


class TopicConfig(NamedTuple):
    """One config. `kind` is Kafka's type; bounds are inclusive; `allowed` lists a string's or list's values."""

    default: str
    kind: str
    meaning: str
    """What it does here; why it does nothing, when not `works`."""
    works: bool = True
    synonyms: tuple[Synonym, ...] = ()
    """Strongest first. The first may be changed while brokers run, the others stand in their files only."""
    low: float = 0
    high: float = 0
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}
    """Values of Kafka's that are not offered, each with the reason."""

    def why_invalid(self, value: str) -> str | None:
        """None when `value` is one that the config can take."""
        return self._why_malformed(value) or self._why_refused(value)

    def _why_malformed(self, value: str) -> str | None:
        match self.kind:
            case "boolean":
                return None if value.lower() in ("true", "false") else "not true or false"
            case "list":
                unknown = [item for item in list_items(value) if self.allowed and item not in self.allowed]
                return f"not one of {', '.join(self.allowed)}: {unknown[0]}" if unknown else None
            case "string":
                return None if value in self.allowed else f"not one of {', '.join(self.allowed)}"
            case _:
                return self._why_not_a_number(value)

    def _why_not_a_number(self, value: str) -> str | None:
        try:
            if not value.isascii() or "_" in value:  # Python would take 1_000 and other scripts' digits
                raise ValueError
            number = float(value) if self.kind == "double" else int(value)
        except ValueError:
            return f"not a number of type {self.kind}"
        return None if self.low <= number <= self.high else f"not between {self.low} and {self.high}"

    def _why_refused(self, value: str) -> str | None:
        items = list_items(value) if self.kind == "list" else [value.lower()]
        return next((f"not offered: {self.refused[item]}" for item in items if item in self.refused), None)


def list_items(value: str) -> list[str]:
    """The items of a config of type list."""
    return [item.strip() for item in value.split(",") if item.strip()]


def why_invalid(name: str, value: str | None) -> str | None:
    """None when a topic may have this config, else a message that names it."""
    known = TOPIC_CONFIGS.get(name)
    if known is None:
        return f"unknown topic config name: {name}"
    if value is None:
        return f"null value not supported for topic configs: {name}"
    reason = known.why_invalid(value.strip())
    return None if reason is None else f"invalid value for topic config {name}: {value!r} is {reason}"


def _int(default: int, meaning: str, *synonyms: Synonym, low: int = 0, high: int = INT_MAX) -> TopicConfig:
    return TopicConfig(str(default), "int", meaning, True, synonyms, low, high)


def _long(default: int, meaning: str, *synonyms: Synonym, low: int = 0) -> TopicConfig:
    return TopicConfig(str(default), "long", meaning, True, synonyms, low, LONG_MAX)


def _idle(config: TopicConfig) -> TopicConfig:
    """Accepted, as tools and other clusters' settings bring it along, but with nothing to act on."""
    return config._replace(works=False)


def _only_false(meaning: str, reason: str, *synonyms: Synonym) -> TopicConfig:
    return TopicConfig("false", "boolean", meaning, True, synonyms, refused={"true": reason})


_NO_COMPACTION = "log compaction does not exist yet"
_NO_LOCAL_LOG = "no part of a topic lies on local disks"
_NO_REPLICAS = "the object store replicates, agents copy nothing to each other"
_ONE_LEVEL = "each codec has one level here; producers choose their own"
_NO_LOG_SEGMENTS = "a partition has no segments of its own: its batches lie in files shared with other topics"
_IN_BUCKET = "all data is in object storage from the start"

TOPIC_CONFIGS: dict[str, TopicConfig] = {
    "cleanup.policy": TopicConfig(
        "delete",
        "list",
        "delete: records go by retention.ms and retention.bytes; empty: they stay. compact is not offered yet.",
        True,
        (Synonym("log.cleanup.policy"),),
        allowed=("compact", "delete"),
        refused={"compact": _NO_COMPACTION},
    ),
    "compression.gzip.level": _idle(_int(-1, _ONE_LEVEL, Synonym("compression.gzip.level"), low=-1, high=9)),
    "compression.lz4.level": _idle(_int(9, _ONE_LEVEL, Synonym("compression.lz4.level"), low=1, high=17)),
    "compression.type": TopicConfig(
        "producer",
        "string",
        "Batches are stored as their producer sent them. Another codec than producer is put in place when"
        " compaction rewrites small batches into large ones.",
        True,
        (Synonym("compression.type"),),
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    "compression.zstd.level": _idle(_int(3, _ONE_LEVEL, Synonym("compression.zstd.level"), low=-131_072, high=22)),
    "delete.retention.ms": _idle(_long(86_400_000, _NO_COMPACTION, Synonym("log.cleaner.delete.retention.ms"))),
    "file.delete.delay.ms": _idle(
        _long(60_000, f"{_NO_LOG_SEGMENTS}; when they go is the same for all", Synonym("log.segment.delete.delay.ms"))
    ),
    "flush.messages": _idle(
        _long(
            LONG_MAX,
            "nothing is acknowledged before it is in object storage",
            Synonym("log.flush.interval.messages"),
            low=1,
        )
    ),
    "flush.ms": _idle(
        _long(LONG_MAX, "nothing is acknowledged before it is in object storage", Synonym("log.flush.interval.ms"))
    ),
    "follower.replication.throttled.replicas": _idle(TopicConfig("", "list", _NO_REPLICAS)),
    "index.interval.bytes": _idle(
        _int(4_096, "files carry an index of a fixed density", Synonym("log.index.interval.bytes"))
    ),
    "leader.replication.throttled.replicas": _idle(TopicConfig("", "list", _NO_REPLICAS)),
    "local.retention.bytes": _idle(_long(-2, _NO_LOCAL_LOG, Synonym("log.local.retention.bytes"), low=-2)),
    "local.retention.ms": _idle(_long(-2, _NO_LOCAL_LOG, Synonym("log.local.retention.ms"), low=-2)),
    "max.compaction.lag.ms": _idle(
        _long(LONG_MAX, _NO_COMPACTION, Synonym("log.cleaner.max.compaction.lag.ms"), low=1)
    ),
    "max.message.bytes": _int(
        1_048_588, "A larger batch is refused with MESSAGE_TOO_LARGE.", Synonym("message.max.bytes")
    ),
    "message.timestamp.after.max.ms": _long(
        HOUR_MS,
        "A batch with a record whose time is further ahead of the agent's clock is refused with INVALID_TIMESTAMP.",
        Synonym("log.message.timestamp.after.max.ms"),
    ),
    "message.timestamp.before.max.ms": _long(
        LONG_MAX,
        "A batch with a record whose time is further behind the agent's clock is refused with INVALID_TIMESTAMP."
        " Setting it costs producers the opening of every batch.",
        Synonym("log.message.timestamp.before.max.ms"),
    ),
    "message.timestamp.type": TopicConfig(
        "CreateTime",
        "string",
        "LogAppendTime: the agent that takes a batch stamps its own time on it.",
        True,
        (Synonym("log.message.timestamp.type"),),
        allowed=("CreateTime", "LogAppendTime"),
    ),
    "min.cleanable.dirty.ratio": _idle(
        TopicConfig("0.5", "double", _NO_COMPACTION, True, (Synonym("log.cleaner.min.cleanable.ratio"),), low=0, high=1)
    ),
    "min.compaction.lag.ms": _idle(_long(0, _NO_COMPACTION, Synonym("log.cleaner.min.compaction.lag.ms"))),
    "min.insync.replicas": _idle(
        _int(
            1,
            "every acknowledged batch is in object storage and in the metastore: no replica can be missing",
            Synonym("min.insync.replicas"),
            low=1,
        )
    ),
    "preallocate": _idle(TopicConfig("false", "boolean", _NO_LOCAL_LOG, True, (Synonym("log.preallocate"),))),
    "remote.log.copy.disable": _only_false("Only false.", _IN_BUCKET),
    "remote.log.delete.on.disable": _only_false("Only false.", _IN_BUCKET),
    "remote.storage.enable": _only_false("Only false.", _IN_BUCKET),
    "retention.bytes": _long(
        -1, "The oldest records of a partition beyond this size go; -1: none.", Synonym("log.retention.bytes"), low=-1
    ),
    "retention.ms": _long(
        604_800_000,
        "Records older than this go; -1: none.",
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
        low=-1,
    ),
    "segment.bytes": _idle(_int(1_073_741_824, _NO_LOG_SEGMENTS, Synonym("log.segment.bytes"), low=14)),
    "segment.index.bytes": _idle(_int(10_485_760, _NO_LOG_SEGMENTS, Synonym("log.index.size.max.bytes"), low=4)),
    "segment.jitter.ms": _idle(_long(0, _NO_LOG_SEGMENTS, Synonym("log.roll.jitter.ms"))),
    "segment.ms": _idle(_long(604_800_000, _NO_LOG_SEGMENTS, Synonym("log.roll.ms"), low=1)),
    "unclean.leader.election.enable": _only_false(
        "Only false.",
        "no leader can lose data, so there is nothing to elect uncleanly",
        Synonym("unclean.leader.election.enable"),
    ),
}

BROKER_DEFAULTS: dict[str, str] = {
    config.synonyms[0].name: name for name, config in TOPIC_CONFIGS.items() if config.synonyms
}
"""Broker config that may be changed while brokers run -> the topic config that it is the cluster's default of."""
