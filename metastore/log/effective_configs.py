"""The layers of a config: the resource's own value, the cluster's, the one in a process's file, Kafka's default.

Place: between the metadata image and everything that acts on a config: produce, groups, retention, compaction, and
the requests that show configs. Agents and controllers ask for the settings in force each time they act on one;
background workers read the values before each job.
Invariant: the first layer that has a value applies. The first two come from the metadata log and are the same for
every process. A file's value of a cluster setting or of a topic's default applies only while the cluster has none
(docs/decisions/0033-one-value-per-cluster.md).
Source: KIP-226 (layers and their order).
Invariant of the settings in force: what is answered belongs to one metadata image; a change reaches a process with
the metadata log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from headrace.config.broker_configs import WITHOUT_EFFECT
from headrace.config.client_metrics import CLIENT_METRICS_CONFIGS
from headrace.config.cluster_values import in_force, setting_text
from headrace.config.config_definition import ConfigDefinition, Synonym
from headrace.config.group_configs import BOUNDS, GROUP_CONFIGS
from headrace.config.settings import Settings
from headrace.config.topic_configs import BROKER_DEFAULTS, TOPIC_CONFIGS
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord

BROKER_RESOURCE = 4
"""ConfigResource.Type.BROKER; with an empty name it is all of them."""
CLIENT_METRICS_RESOURCE = 16
"""ConfigResource.Type.CLIENT_METRICS."""
GROUP_RESOURCE = 32
"""ConfigResource.Type.GROUP."""
WHOLE_CLUSTER = ""
_DECLARED = {field.encode_name: field for field in msgspec.structs.fields(Settings)}
"""Settings by their dotted names. Read once: msgspec evaluates all annotations again each time it is asked."""


class ConfigSource(enum.IntEnum):
    """Source of a value; Kafka's numbers."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    FILE = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigLayer(NamedTuple):
    """One value that a config would have if nothing stronger were said; `name` is its name in that place."""

    name: str
    value: str
    source: ConfigSource


class EffectiveConfigs:
    """What one process's settings say, and above them what the metadata image says: make it once from the settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        """Of this process, without the cluster's values."""
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
        found += _cluster_layer(image, TOPIC_CONFIGS[name])
        return [*found, *self._below_topics[name]]

    def topic_value(self, image: MetadataImage, topic: str, name: str) -> str:
        """Return what holds for the topic."""
        return self.topic_layers(image, topic, name)[0].value

    def broker_layers(self, image: MetadataImage, node_id: int, name: str) -> list[ConfigLayer]:
        """All that is said about a setting or a cluster-wide default, strongest first, never empty."""
        if name in BROKER_DEFAULTS:
            return self.topic_layers(image, None, BROKER_DEFAULTS[name])
        places = ((str(node_id), ConfigSource.BROKER), (WHOLE_CLUSTER, ConfigSource.CLUSTER))
        found = [(image.configs.get((BROKER_RESOURCE, place), {}).get(name), source) for place, source in places]
        said = [ConfigLayer(name, value, source) for value, source in found if value is not None]
        if name in WITHOUT_EFFECT:
            return [*said, ConfigLayer(name, WITHOUT_EFFECT[name].default, ConfigSource.DEFAULT)]
        return [*said, *self._settings[name]]

    def cluster_value(self, cluster: Mapping[str, str], name: str) -> str:
        """The value of a setting that no broker has for itself; `cluster`: as `set_for_all_brokers`."""
        return cluster.get(name) or self._settings[name][0].value

    def group_layers(self, image: MetadataImage, group_id: str, name: str) -> list[ConfigLayer]:
        """All that is said about a group config, strongest first, never empty."""
        own = image.configs.get((GROUP_RESOURCE, group_id), {})
        found = [ConfigLayer(name, own[name], ConfigSource.GROUP)] if name in own else []
        found += _cluster_layer(image, GROUP_CONFIGS[name])
        return [*found, *self._below_groups[name]]

    def group_bounds(self, image: MetadataImage, name: str) -> tuple[int, int]:
        """Return the least and the most that a config of BOUNDS may be in a group."""
        cluster = set_for_all_brokers(image)
        low, high = (0 if bound is None else int(self.cluster_value(cluster, bound)) for bound in BOUNDS[name])
        return low, high


def shown_layers(layers: Sequence[ConfigLayer]) -> Sequence[ConfigLayer]:
    """The layers as requests show them: without a value of the cluster that is the default, unless it is above another.

    A cluster records the values of its first processes, so that all its processes agree on them. They were not set:
    they are shown as defaults, as in Kafka, and kafka-topics.sh does not list them for each topic.
    """
    default = layers[-1]
    others = [each for each in layers if each.source is not ConfigSource.CLUSTER or each.value != default.value]
    is_default = default.source is ConfigSource.DEFAULT and others[0].value == layers[0].value
    return others if is_default else layers


def client_metrics_layers(image: MetadataImage, subscription: str, name: str) -> list[ConfigLayer]:
    """All that is said about a config of a client-metrics subscription, strongest first, never empty."""
    own = image.configs.get((CLIENT_METRICS_RESOURCE, subscription), {})
    found = [ConfigLayer(name, own[name], ConfigSource.CLIENT_METRICS)] if name in own else []
    return [*found, ConfigLayer(name, CLIENT_METRICS_CONFIGS[name].default, ConfigSource.DEFAULT)]


def decided_topic_value(image: MetadataImage, topic: str, name: str) -> str | None:
    """Return what the topic or the cluster says, else the default if no file can say otherwise; None if files might.

    For what deletes data: processes with different files must not decide it by them.
    """
    config, own = TOPIC_CONFIGS[name], image.configs.get((TOPIC_RESOURCE, topic), {})
    if name in own:
        return own[name]
    if layers := _cluster_layer(image, config):
        return layers[0].value
    return None if any(synonym.name in _DECLARED for synonym in config.synonyms) else config.default


def set_for_all_brokers(image: MetadataImage) -> Mapping[str, str]:
    """The cluster-wide broker configs: name -> value."""
    return image.configs.get((BROKER_RESOURCE, WHOLE_CLUSTER), {})


def set_for_broker(image: MetadataImage, node_id: int) -> Mapping[str, str]:
    """The broker's own configs, and the cluster-wide ones that it has no value of."""
    own = image.configs.get((BROKER_RESOURCE, str(node_id)), {})
    return {**set_for_all_brokers(image), **own} if own else set_for_all_brokers(image)


def setting_record(name: str, value: str) -> ConfigRecord:
    """The record that gives the cluster a value of the setting."""
    return ConfigRecord(resource_type=BROKER_RESOURCE, resource_name=WHOLE_CLUSTER, name=name, value=value)


def _cluster_layer(image: MetadataImage, config: ConfigDefinition) -> list[ConfigLayer]:
    """The cluster's value, under the first of the config's broker names."""
    cluster = set_for_all_brokers(image)
    return [
        ConfigLayer(synonym.name, cluster[synonym.name], ConfigSource.CLUSTER)
        for synonym in config.synonyms[:1]
        if synonym.name in cluster
    ]


def _below(name: str, config: ConfigDefinition, settings: Settings) -> tuple[ConfigLayer, ...]:
    """Return what the process's settings say, where they differ from their defaults, and what holds otherwise: by the
    broker's names, in the config's own unit.
    """
    found: list[ConfigLayer] = []
    default = config.default
    for synonym in reversed([synonym for synonym in config.synonyms if synonym.name in _DECLARED]):
        field = _DECLARED[synonym.name]
        if field.default is not None:
            default = _scaled(field.default, synonym)
        value = getattr(settings, field.name)
        if value is not None and value != field.default:
            found.insert(0, ConfigLayer(synonym.name, _scaled(value, synonym), ConfigSource.FILE))
    place = config.synonyms[0].name if config.synonyms else name
    return (*found, ConfigLayer(place, default, ConfigSource.DEFAULT))


def _scaled(value: Any, synonym: Synonym) -> str:
    """Return the value in the config's own unit; -1 means "none" in every unit."""
    return str(value * synonym.factor) if synonym.factor != 1 and value >= 0 else setting_text(value)


def _setting_layers(name: str, value: Any, default: Any) -> tuple[ConfigLayer, ...]:
    below = ConfigLayer(name, setting_text(default), ConfigSource.DEFAULT)
    return (below,) if value == default else (ConfigLayer(name, setting_text(value), ConfigSource.FILE), below)


class GroupValues:
    """One group's configs in an image."""

    def __init__(self, configs: EffectiveConfigs, image: MetadataImage, group_id: str) -> None:
        self._configs, self._image, self._group_id = configs, image, group_id

    def text(self, name: str) -> str:
        """Return what holds for the group."""
        return self._configs.group_layers(self._image, self._group_id, name)[0].value

    def number(self, name: str) -> int:
        """Return the number. Values outside the bounds are refused when they are set; if the bounds changed since, the
        nearest allowed value applies.
        """
        value = int(self.text(name))
        if name not in BOUNDS:
            return value
        low, high = self._configs.group_bounds(self._image, name)
        return min(max(value, low), high)


T = TypeVar("T")


class PerGroup(Generic[T]):
    """What is made of each group's configs, made again when any config changed."""

    def __init__(
        self, settings: Settings, image: Callable[[], MetadataImage], make: Callable[[GroupValues], T]
    ) -> None:
        """`image`: the newest one."""
        self._configs, self._image, self._make = EffectiveConfigs(settings), image, make
        self._made: dict[str, T] = {}
        self._made_of: object = None

    def of(self, group_id: str) -> T:
        """Return the group's."""
        image = self._image()
        if image.configs is not self._made_of:
            self._made, self._made_of = {}, image.configs
        found = self._made.get(group_id)
        if found is None:
            found = self._made[group_id] = self._make(GroupValues(self._configs, image, group_id))
        return found


class SettingsInForce:
    """`current()` costs a comparison unless a cluster-wide value changed."""

    def __init__(self, settings: Settings, image: Callable[[], MetadataImage] = MetadataImage) -> None:
        """`image`: the process's newest image."""
        self._own = self._current = settings
        self._image = image
        self._values: Mapping[str, str] | None = None

    def current(self) -> Settings:
        """Return the settings of the newest image."""
        return self.of(self._image())

    def of(self, image: MetadataImage) -> Settings:
        """Read the settings of this image."""
        values = set_for_all_brokers(image)
        if values is not self._values:
            self._values, self._current = values, in_force(self._own, values)
        return self._current


async def read_settings(api: ClusterApi, settings: Settings) -> Settings:
    """The settings in force now, for a process that does not follow the metadata log. One query."""
    return in_force(settings, await api.cluster_configs())
