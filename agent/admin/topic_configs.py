"""Kafka's topic configs: name, type, bounds and default of each, and what a value must look like.

Place: CreateTopics refuses what is not here and shows what is.
Invariant: a value that passed `why_invalid` can be parsed by whoever acts on it. Being listed means
that Headrace accepts the config, not that it acts on it: those about replicas, local disks and
flushing have nothing to act on here. Pure; nothing is lost if the process dies.
Source: Kafka 4 topic configuration reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


class TopicConfig(NamedTuple):
    """One config. `kind` is Kafka's type; bounds are inclusive; `allowed` lists a string's or list's values."""

    default: str
    kind: str
    low: float = 0
    high: float = 0
    allowed: tuple[str, ...] = ()

    def why_invalid(self, value: str) -> str | None:
        """None when `value` is one that the config can take."""
        match self.kind:
            case "boolean":
                return None if value.lower() in ("true", "false") else "not true or false"
            case "list":
                unknown = [item for item in _items(value) if self.allowed and item not in self.allowed]
                return f"{unknown[0]} is not one of {', '.join(self.allowed)}" if unknown else None
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


def _int(default: int, low: int = 0, high: int = _INT_MAX) -> TopicConfig:
    return TopicConfig(str(default), "int", low, high)


def _long(default: int, low: int = 0) -> TopicConfig:
    return TopicConfig(str(default), "long", low, _LONG_MAX)


def _boolean(default: str) -> TopicConfig:
    return TopicConfig(default, "boolean")


TOPIC_CONFIGS: dict[str, TopicConfig] = {
    "cleanup.policy": TopicConfig("delete", "list", allowed=("compact", "delete")),
    "compression.gzip.level": _int(-1, -1, 9),
    "compression.lz4.level": _int(9, 1, 17),
    "compression.type": TopicConfig(
        "producer", "string", allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
    ),
    "compression.zstd.level": _int(3, -131_072, 22),
    "delete.retention.ms": _long(86_400_000),
    "file.delete.delay.ms": _long(60_000),
    "flush.messages": _long(_LONG_MAX, 1),
    "flush.ms": _long(_LONG_MAX),
    "follower.replication.throttled.replicas": TopicConfig("", "list"),
    "index.interval.bytes": _int(4_096),
    "leader.replication.throttled.replicas": TopicConfig("", "list"),
    "local.retention.bytes": _long(-2, -2),
    "local.retention.ms": _long(-2, -2),
    "max.compaction.lag.ms": _long(_LONG_MAX, 1),
    "max.message.bytes": _int(1_048_588),
    "message.timestamp.after.max.ms": _long(3_600_000),
    "message.timestamp.before.max.ms": _long(_LONG_MAX),
    "message.timestamp.type": TopicConfig("CreateTime", "string", allowed=("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": TopicConfig("0.5", "double", 0, 1),
    "min.compaction.lag.ms": _long(0),
    "min.insync.replicas": _int(1, 1),
    "preallocate": _boolean("false"),
    "remote.log.copy.disable": _boolean("false"),
    "remote.log.delete.on.disable": _boolean("false"),
    "remote.storage.enable": _boolean("false"),
    "retention.bytes": _long(-1, -1),
    "retention.ms": _long(604_800_000, -1),
    "segment.bytes": _int(1_073_741_824, 14),
    "segment.index.bytes": _int(10_485_760, 4),
    "segment.jitter.ms": _long(0),
    "segment.ms": _long(604_800_000, 1),
    "unclean.leader.election.enable": _boolean("false"),
}


def why_invalid(name: str, value: str | None) -> str | None:
    """None when a topic may have this config, else a message that names it."""
    known = TOPIC_CONFIGS.get(name)
    if known is None:
        return f"unknown topic config name: {name}"
    if value is None:
        return f"null value not supported for topic configs: {name}"
    reason = known.why_invalid(value.strip())
    return None if reason is None else f"invalid value for topic config {name}: {value!r} is {reason}"


class EffectiveConfig(NamedTuple):
    name: str
    value: str
    is_default: bool


def effective_configs(given: Mapping[str, str], defaults: Mapping[str, str]) -> Iterator[EffectiveConfig]:
    """Every config of a topic that was given `given`; `defaults` replaces Kafka's default of some."""
    for name, config in TOPIC_CONFIGS.items():
        if name in given:
            yield EffectiveConfig(name, given[name], False)
        else:
            yield EffectiveConfig(name, defaults.get(name, config.default), True)


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]
