"""Which value of a topic config holds: the topic's own, the cluster's, an agent's file's, or Kafka's default.

Place: between the metadata image and whoever acts on a topic config: produce, retention, compaction, and
the requests that show configs.
Invariant: the first of these that says something rules: the topic's config, the cluster's (the broker
config of the same meaning, set while brokers run), the process's settings, Kafka's default. What the cluster
says is the same for every process. Pure; nothing is lost if the process dies.
Source: KIP-226 (layers and their order).
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import msgspec

from config.settings import Settings
from config.topic_configs import TOPIC_CONFIGS, Synonym
from metastore.log.image import MetadataImage
from metastore.log.records import TOPIC_RESOURCE

BROKER_RESOURCE = 4
"""ConfigResource.Type.BROKER; with an empty name it is all of them."""
WHOLE_CLUSTER = ""


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
    """The layers below a topic's own configs as one process sees them: make it once from its settings."""

    def __init__(self, settings: Settings) -> None:
        self._below = {name: tuple(_fixed_layers(name, settings)) for name in TOPIC_CONFIGS}

    def layers(self, image: MetadataImage, topic: str | None, name: str) -> list[ConfigLayer]:
        """All that is said about config `name`, strongest first, never empty; topic None: of a topic without any."""
        own = {} if topic is None else image.configs.get((TOPIC_RESOURCE, topic), {})
        found = [ConfigLayer(name, own[name], ConfigSource.TOPIC)] if name in own else []
        cluster = image.configs.get((BROKER_RESOURCE, WHOLE_CLUSTER), {})
        said = [synonym.name for synonym in TOPIC_CONFIGS[name].synonyms[:1] if synonym.name in cluster]
        found += [ConfigLayer(synonym, cluster[synonym], ConfigSource.CLUSTER) for synonym in said]
        return [*found, *self._below[name]]

    def value(self, image: MetadataImage, topic: str, name: str) -> str:
        """What holds for the topic."""
        return self.layers(image, topic, name)[0].value


def setting_text(value: Any) -> str:
    """A setting's value as a properties file would have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fixed_layers(name: str, settings: Settings) -> list[ConfigLayer]:
    """What the process's settings say, where they differ from their defaults, and what holds otherwise."""
    config = TOPIC_CONFIGS[name]
    declared = {field.encode_name: field for field in msgspec.structs.fields(Settings)}
    found: list[ConfigLayer] = []
    default = config.default
    for synonym in reversed([synonym for synonym in config.synonyms if synonym.name in declared]):
        field = declared[synonym.name]
        if field.default is not None:
            default = _scaled(field.default, synonym)
        value = getattr(settings, field.name)
        if value is not None and value != field.default:
            found.insert(0, ConfigLayer(synonym.name, _scaled(value, synonym), ConfigSource.FILE))
    return [*found, ConfigLayer(name, default, ConfigSource.DEFAULT)]


def _scaled(value: Any, synonym: Synonym) -> str:
    """In the topic config's unit; -1 means "none" in every unit."""
    return str(value * synonym.factor) if synonym.factor != 1 and value >= 0 else setting_text(value)
