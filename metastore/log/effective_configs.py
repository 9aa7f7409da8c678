"""Which value of a config applies: the resource's own, the cluster's, the one in an agent's file, or Kafka's default.

Place: between the metadata image and the code that applies a config: produce, groups, retention, compaction, and
the requests that show configs.
Invariant: the first of these that is set applies: the topic's own config, the cluster's (the broker
config of the same meaning, set while brokers run), the process's settings, Kafka's default. What the image
says is the same for every process. Pure.
Source: KIP-226 (layers and their order).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.config.config_definition import ConfigDefinition, Synonym
from headrace.config.group_configs import GROUP_CONFIGS
from headrace.config.settings import Settings
from headrace.config.topic_configs import BROKER_DEFAULTS, TOPIC_CONFIGS
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.records import TOPIC_RESOURCE

BROKER_RESOURCE = 4
"""ConfigResource.Type.BROKER; with an empty name it is all of them."""
GROUP_RESOURCE = 32
"""ConfigResource.Type.GROUP."""
WHOLE_CLUSTER = ""
_DECLARED = {field.encode_name: field for field in msgspec.structs.fields(Settings)}
"""By its dotted name. Once: msgspec evaluates all annotations again each time it is asked."""


class ConfigSource(enum.IntEnum):
    """Where a value comes from; Kafka's numbers."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    FILE = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


class ConfigLayer(NamedTuple):
    """One value that a config would have if nothing stronger were said; `name` is its name in that place."""

    name: str
    value: str
    source: ConfigSource


class EffectiveConfigs:
    """What one process's settings say, and above them what the metadata image says: make it once from the settings."""

    def __init__(self, settings: Settings) -> None:
        self._below_topics = {name: _below(name, config, settings) for name, config in TOPIC_CONFIGS.items()}
        self._below_groups = {name: _below(name, config, settings) for name, config in GROUP_CONFIGS.items()}
        self._settings = {
            name: _setting_layers(name, getattr(settings, field.name), field.default)
            for name, field in _DECLARED.items()
        }

    def topic_layers(self, image: MetadataImage, topic: str | None, name: str) -> list[ConfigLayer]:
        """All that is said about a topic config, strongest first, never empty; topic None: of a topic without any."""
        own = {} if topic is None else image.configs.get((TOPIC_RESOURCE, topic), {})
        found = [ConfigLayer(name, own[name], ConfigSource.TOPIC)] if name in own else []
        cluster = set_for_all_brokers(image)
        said = [synonym.name for synonym in TOPIC_CONFIGS[name].synonyms[:1] if synonym.name in cluster]
        found += [ConfigLayer(synonym, cluster[synonym], ConfigSource.CLUSTER) for synonym in said]
        return [*found, *self._below_topics[name]]

    def topic_value(self, image: MetadataImage, topic: str, name: str) -> str:
        """What holds for the topic."""
        return self.topic_layers(image, topic, name)[0].value

    def broker_layers(self, image: MetadataImage, node_id: int, name: str) -> list[ConfigLayer]:
        """All that is said about a setting or a cluster-wide default, strongest first, never empty."""
        if name in BROKER_DEFAULTS:
            return self.topic_layers(image, None, BROKER_DEFAULTS[name])
        places = ((str(node_id), ConfigSource.BROKER), (WHOLE_CLUSTER, ConfigSource.CLUSTER))
        found = [(image.configs.get((BROKER_RESOURCE, place), {}).get(name), source) for place, source in places]
        said = [ConfigLayer(name, value, source) for value, source in found if value is not None]
        return [*said, *self._settings[name]]

    def agent_value(self, name: str) -> str:
        """What this process's own settings say."""
        return self._settings[name][0].value

    def cluster_value(self, cluster: Mapping[str, str], name: str) -> str:
        """What holds for a process that need not be a broker; `cluster`: as `set_for_all_brokers`."""
        return cluster.get(name) or self.agent_value(name)

    def group_layers(self, image: MetadataImage, group_id: str, name: str) -> list[ConfigLayer]:
        """All that is said about a group config, strongest first, never empty."""
        own = image.configs.get((GROUP_RESOURCE, group_id), {})
        found = [ConfigLayer(name, own[name], ConfigSource.GROUP)] if name in own else []
        return [*found, *self._below_groups[name]]


def set_for_all_brokers(image: MetadataImage) -> Mapping[str, str]:
    """The cluster-wide broker configs: name -> value."""
    return image.configs.get((BROKER_RESOURCE, WHOLE_CLUSTER), {})


def _below(name: str, config: ConfigDefinition, settings: Settings) -> tuple[ConfigLayer, ...]:
    """What the process's settings say, where they differ from their defaults, and what holds otherwise."""
    found: list[ConfigLayer] = []
    default = config.default
    for synonym in reversed([synonym for synonym in config.synonyms if synonym.name in _DECLARED]):
        field = _DECLARED[synonym.name]
        if field.default is not None:
            default = _scaled(field.default, synonym)
        value = getattr(settings, field.name)
        if value is not None and value != field.default:
            found.insert(0, ConfigLayer(synonym.name, _scaled(value, synonym), ConfigSource.FILE))
    return (*found, ConfigLayer(name, default, ConfigSource.DEFAULT))


def _scaled(value: Any, synonym: Synonym) -> str:
    """In the config's own unit; -1 means "none" in every unit."""
    return str(value * synonym.factor) if synonym.factor != 1 and value >= 0 else _text(value)


def _setting_layers(name: str, value: Any, default: Any) -> tuple[ConfigLayer, ...]:
    below = ConfigLayer(name, _text(default), ConfigSource.DEFAULT)
    return (below,) if value == default else (ConfigLayer(name, _text(value), ConfigSource.FILE), below)


def _text(value: Any) -> str:
    """As a properties file would have it; empty when unset."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
