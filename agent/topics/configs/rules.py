"""Decides on a request to change configs: the records to append, or the error.

Place: between AlterConfigs, IncrementalAlterConfigs and the metadata log; pure decisions on one image.
Invariant: a resource is changed completely or not at all. A value that Headrace cannot use is refused
with a reason; one that is set already can stay. None is dropped silently (config/topic_configs.py).
Timeouts of a group are within the bounds of the agent that gets the request. An agent with tighter bounds uses the
nearest allowed value (agent/groups/consumer/rules.py).
Source: KIP-133, KIP-339 (operations), KIP-226 (brokers), KIP-848 (groups); Kafka's ConfigurationControlManager
and GroupConfig.validate.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.config.bounds import VIRTUAL_NODE_ID
from headrace.config.broker_configs import dynamic_definition, is_for_all_brokers, why_static
from headrace.config.client_metrics import CLIENT_METRICS_CONFIGS
from headrace.config.cluster_values import RETENTION_MS, UNITS_OF_RETENTION, in_force
from headrace.config.config_definition import ConfigDefinition, list_items
from headrace.config.consistency import why_inconsistent
from headrace.config.group_configs import (
    BEATS,
    BOUNDS,
    GROUP_CONFIGS,
)
from headrace.config.refused import why_refused
from headrace.config.table_configs import why_fixed, why_not_named
from headrace.config.topic_configs import LINK_NAME, TOPIC_CONFIGS, why_not_with
from headrace.metastore.log.effective_configs import ConfigSource, EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord

Values = Mapping[str, str | None]
"""The change: each config's new value, None to delete it."""


class ResourceType(enum.IntEnum):
    """The types of Kafka's ConfigResource.Type that Headrace has."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(enum.IntEnum):
    """The change of one config."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Wish(NamedTuple):
    """One change; `operation` is Kafka's number and may be unknown to Operation."""

    name: str
    operation: int
    value: str | None


class ConfigResource(NamedTuple):
    """The owner of configs: the name of a topic, group or subscription, a node id, or empty for all brokers."""

    type: int
    name: str


Changes = list[ConfigRecord] | Verdict


class _RefusedError(Exception):
    """Carries the verdict out of nested calls."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.verdict = Verdict(code, message)


def judge(configs: EffectiveConfigs, image: MetadataImage, resource: ConfigResource, wishes: Sequence[Wish]) -> Changes:
    """The records for the changes; none for values that are already set."""
    try:
        _check_resource(image, resource)
        _check_names(wishes)
        own = image.configs.get(resource, {})
        values = {wish.name: _new_value(resource, wish, own) for wish in wishes}
        if resource.type == ResourceType.GROUP and (reason := why_out_of_bounds(configs, image, resource.name, values)):
            raise _RefusedError(ErrorCode.invalid_config, reason)
        if resource == ConfigResource(ResourceType.BROKER, "") and (reason := _why_inconsistent(configs, own, values)):
            raise _RefusedError(ErrorCode.invalid_config, reason)
        if resource.type == ResourceType.TOPIC and (reason := _why_not_here(image, resource.name, own, values)):
            raise _RefusedError(ErrorCode.invalid_config, reason)
    except _RefusedError as refused:
        return refused.verdict
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
        for name, value in values.items()
        if value != own.get(name)
    ]


def replacing(image: MetadataImage, resource: ConfigResource, wishes: Sequence[Wish]) -> list[Wish]:
    """The same changes, and the removal of all other configs of the resource, as AlterConfigs requires. `link.name`
    stays: only a promotion removes it."""
    wanted = {wish.name for wish in wishes}
    gone = [name for name in image.configs.get(resource, {}) if name not in wanted and name != LINK_NAME]
    return [*wishes, *(Wish(name, Operation.DELETE, None) for name in gone)]


def why_no_such_resource(image: MetadataImage, resource: ConfigResource) -> Verdict | None:
    """Return None for a resource that can have configs in the metadata log."""
    try:
        _check_resource(image, resource)
    except _RefusedError as refused:
        return refused.verdict
    return None


def _check_resource(image: MetadataImage, resource: ConfigResource) -> None:
    match resource.type:
        case ResourceType.TOPIC:
            if resource.name not in image.topics_by_name:
                raise _RefusedError(
                    ErrorCode.unknown_topic_or_partition, f"topic does not exist: {resource.name or '(no name)'}"
                )
        case ResourceType.BROKER:
            if resource.name and not (
                resource.name.isascii() and resource.name.isdecimal() and len(resource.name) < 20
            ):
                raise _RefusedError(ErrorCode.invalid_request, f"not a node id: {resource.name}")
            if resource.name == str(VIRTUAL_NODE_ID):
                message = "all agents have this address: change a config for all brokers, or name one agent's node id"
                raise _RefusedError(ErrorCode.invalid_request, message)
            if resource.name and int(resource.name) not in image.agents:
                raise _RefusedError(ErrorCode.invalid_request, f"broker does not exist: {resource.name}")
        case ResourceType.GROUP:
            if not resource.name:
                raise _RefusedError(ErrorCode.invalid_request, "the group name is empty")
        case ResourceType.CLIENT_METRICS:
            if not resource.name:
                raise _RefusedError(ErrorCode.invalid_request, "the name of the client-metrics subscription is empty")
        case _:
            raise _RefusedError(ErrorCode.invalid_request, f"resources of this type have no configs: {resource.type}")


def _check_names(wishes: Sequence[Wish]) -> None:
    twice = sorted(name for name, times in Counter(wish.name for wish in wishes).items() if times > 1)
    if twice:
        raise _RefusedError(ErrorCode.invalid_request, f"duplicate config: {', '.join(twice)}")
    if any(not wish.name for wish in wishes):
        raise _RefusedError(ErrorCode.invalid_request, "a config has an empty name")


def _new_value(resource: ConfigResource, wish: Wish, own: Mapping[str, str]) -> str | None:
    """Return None if the config is deleted, so that its default applies."""
    if resource.type == ResourceType.TOPIC and wish.name == LINK_NAME:
        return _same_link(wish, own.get(LINK_NAME, ""))
    if wish.operation == Operation.DELETE:
        return None
    definition = _definition(resource, wish.name)
    if wish.operation not in [*Operation]:
        raise _RefusedError(ErrorCode.invalid_request, f"unknown operation: {wish.operation}")
    if wish.value is None:
        raise _RefusedError(ErrorCode.invalid_config, f"null value not supported: {wish.name}")
    value = wish.value.strip()
    if wish.operation != Operation.SET:
        value = _combined(wish, definition, own.get(wish.name, definition.default))
    if value != own.get(wish.name) and (reason := definition.why_invalid(value)):
        raise _RefusedError(ErrorCode.invalid_config, f"invalid value for config {wish.name}: {value!r} is {reason}")
    return value


def _same_link(wish: Wish, held: str) -> str | None:
    """Return the link that the topic has; a request cannot change it."""
    if wish.operation != Operation.SET or (wish.value or "") != held:
        what = f"link '{held}' keeps this copy, until it is promoted" if held else "headrace link create makes copies"
        raise _RefusedError(ErrorCode.policy_violation, f"{LINK_NAME} cannot be changed: {what}")
    return wish.value


def _why_inconsistent(
    configs: EffectiveConfigs, own: Mapping[str, str], values: Mapping[str, str | None]
) -> str | None:
    """Return None if the cluster's settings fit each other after the change."""
    after = {name: value for name, value in {**own, **values}.items() if value is not None}
    return why_inconsistent(in_force(configs.settings, after))


def _why_not_here(image: MetadataImage, topic: str, own: Mapping[str, str], values: Values) -> str | None:
    """Return None if this cluster has what the topic's new configs need; what is set already can stay."""
    after = {name: value for name, value in {**own, **values}.items() if value is not None}
    changed = {name: value for name, value in after.items() if own.get(name) != value}
    reason = why_not_with(changed, has_topic_tables=image.has_topic_tables, has_low_latency=image.has_low_latency)
    return reason or why_fixed(own, after) or why_not_named(topic, own, after)


def _combined(wish: Wish, definition: ConfigDefinition, current: str) -> str:
    """The list with items added or removed."""
    operation = Operation(wish.operation)
    if definition.kind != "list":
        message = f"cannot {operation.name.lower()}: config {wish.name} is not a list"
        raise _RefusedError(ErrorCode.invalid_config, message)
    items, given = list_items(current), list_items(wish.value or "")
    if operation is Operation.APPEND:
        return ",".join([*items, *(item for item in given if item not in items)])
    return ",".join(item for item in items if item not in given)


def _definition(resource: ConfigResource, name: str) -> ConfigDefinition:
    match resource.type:
        case ResourceType.TOPIC:
            found = TOPIC_CONFIGS.get(name)
        case ResourceType.GROUP:
            found = GROUP_CONFIGS.get(name)
        case ResourceType.CLIENT_METRICS:
            found = CLIENT_METRICS_CONFIGS.get(name)
        case _:
            found = _broker_definition(resource.name, name)
    if found is None:
        unknown = f"unknown {ResourceType(resource.type).name.lower().replace('_', ' ')} config: {name}"
        raise _RefusedError(ErrorCode.invalid_config, unknown)
    return found


def _broker_definition(broker: str, name: str) -> ConfigDefinition | None:
    if broker and is_for_all_brokers(name):
        message = f"{name} applies to the whole cluster, because all its processes use it: set it without a broker id"
        raise _RefusedError(ErrorCode.invalid_request, message)
    if name in UNITS_OF_RETENTION:
        message = f"{name} is only for files: set {RETENTION_MS}, in milliseconds, for the cluster"
        raise _RefusedError(ErrorCode.invalid_request, message)
    if reason := why_static(name):
        message = f"{name} cannot change at run time: {reason}. Set it in the agents' configuration and restart them"
        raise _RefusedError(ErrorCode.invalid_request, message)
    definition = dynamic_definition(name)
    if definition is None and (reason := why_refused(name)):
        raise _RefusedError(ErrorCode.invalid_config, f"{name} is not used here: {reason}")
    return definition


def why_out_of_bounds(configs: EffectiveConfigs, image: MetadataImage, group_id: str, values: Values) -> str | None:
    """Return None if the change is allowed; `values` are already checked to be numbers."""
    for name, value in values.items():
        if value is None or name not in BOUNDS:
            continue
        low, high = configs.group_bounds(image, name)
        if not low <= int(value) <= high:
            least, most = ("" if bound is None else f"{bound}=" for bound in BOUNDS[name])
            return f"invalid value for config {name}: {value!r} is not between {least}{low} and {most}{high}"
    for pair in BEATS:
        beat, session = (_then(configs, image, group_id, values, name) for name in pair)
        if values and beat >= session:
            return f"{pair[0]} must be less than {pair[1]}: {beat} is not less than {session}"
    return None


def _then(configs: EffectiveConfigs, image: MetadataImage, group_id: str, values: Values, name: str) -> int:
    """The group's value after the change."""
    if (value := values.get(name)) is not None:
        return int(value)
    layers = configs.group_layers(image, group_id, name)
    return int(next(layer.value for layer in layers if name not in values or layer.source is not ConfigSource.GROUP))
