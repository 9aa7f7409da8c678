"""DescribeConfigs (key 32, versions 1-4): every config of a resource, its sources, and its effect.

Place: answered from the image, after catching up with the end of the log, and from this process's settings.
Invariant: described values are the effective ones: both come from metastore/log/effective_configs.py. A change that
any agent confirmed is visible on every agent that reaches the metastore. Secrets are never shown.
Source: KIP-133, KIP-226 (synonyms), KIP-569 (documentation and types), KIP-412 (loggers), KIP-848 (groups).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.agent.cluster.view import ClusterView
from headrace.agent.topics.configs import loggers
from headrace.agent.topics.configs.rules import ConfigResource, ResourceType, why_no_such_resource
from headrace.config.addresses import address_text
from headrace.config.bounds import VIRTUAL_NODE_ID
from headrace.config.broker_configs import WITHOUT_EFFECT, broker_settings, holds_secret, why_static
from headrace.config.client_metrics import CLIENT_METRICS_CONFIGS
from headrace.config.cluster_values import in_force
from headrace.config.config_definition import ConfigDefinition, ConfigEffect
from headrace.config.group_configs import GROUP_CONFIGS
from headrace.config.topic_configs import BROKER_DEFAULTS, TOPIC_CONFIGS
from headrace.metastore.log.effective_configs import (
    ConfigLayer,
    ConfigSource,
    EffectiveConfigs,
    client_metrics_layers,
    set_for_all_brokers,
    shown_layers,
)
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.segment_logs.topics import LIFECYCLE_TOPICS, lifecycle_configs
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

_ADVERTISED = "advertised.listeners"
_VIRTUAL = ConfigResource(ResourceType.BROKER, str(VIRTUAL_NODE_ID))
"""All agents with one address: the agent that gets the request describes itself."""
_KINDS = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "password": 9}


class ShownConfig(NamedTuple):
    """One config of a description; `layers` in order of precedence."""

    name: str
    layers: Sequence[ConfigLayer]
    kind: str
    documentation: str
    is_read_only: bool = False
    is_sensitive: bool = False


class DescribeConfigs:
    """Answer DescribeConfigs with the values in effect and their sources."""

    def __init__(
        self, cluster: ClusterView, configs: EffectiveConfigs, is_shared: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_shared`: whether clients may see all agents as one."""
        self._cluster = cluster
        self._is_shared = is_shared
        self._configs = configs

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeConfigsRequest)
        named = [ConfigResource(asked.resource_type, asked.resource_name) for asked in entity.resources]
        times = Counter(named)
        image, unreachable = await self._newest_image()
        results = []
        for asked, resource in zip(entity.resources, named, strict=True):
            found: list[ShownConfig] | Verdict = Verdict(ErrorCode.invalid_request, "duplicate resource")
            if times[resource] == 1:  # else a small request could cause a very large response
                found = self._describe(image, unreachable, resource)
            results.append(_result(schema, entity, asked, resource, found))
            await asyncio.sleep(0)  # there may be thousands: let other requests run in between
        return reply(request, schema.response(results=tuple(results)))

    async def _newest_image(self) -> tuple[MetadataImage, Verdict | None]:
        """The image for the answer, and the error for an unknown resource if the image may be out of date."""
        try:
            return await self._cluster.catch_up(), None
        except HeadraceError as error:
            return self._cluster.image, Verdict.failed(error)

    def _describe(
        self, image: MetadataImage, unreachable: Verdict | None, resource: ConfigResource
    ) -> list[ShownConfig] | Verdict:
        if resource.type == ResourceType.BROKER_LOGGER:
            return self._not_here(resource) or list(_loggers())
        if resource == _VIRTUAL and self._is_shared():
            return list(self._broker(image))
        if resource.type == ResourceType.TOPIC and resource.name in LIFECYCLE_TOPICS:
            return list(shown_lifecycle_topic(self._configs, image, resource.name))
        refusal = why_no_such_resource(image, resource)
        if refusal is not None:
            return unreachable or refusal
        match resource.type:
            case ResourceType.TOPIC:
                return list(shown_topic(self._configs, image, resource.name))
            case ResourceType.GROUP:
                return list(self._group(image, resource.name))
            case ResourceType.CLIENT_METRICS:
                return list(_client_metrics(image, resource.name))
            case _ if not resource.name:
                return list(self._whole_cluster(image))
        return self._not_here(resource) or list(self._broker(image))

    def _not_here(self, resource: ConfigResource) -> Verdict | None:
        """Only a broker itself can describe its settings."""
        own = str(self._cluster.node_id)
        if resource.name == own:
            return None
        return Verdict(ErrorCode.invalid_request, f"ask broker {resource.name or '(none)'} itself: this is {own}")

    def _group(self, image: MetadataImage, group_id: str) -> Iterator[ShownConfig]:
        for name, definition in GROUP_CONFIGS.items():
            layers = self._configs.group_layers(image, group_id, name)
            yield ShownConfig(name, layers, definition.kind, definition.meaning)

    def _broker(self, image: MetadataImage) -> Iterator[ShownConfig]:
        """This agent's settings, and the cluster-wide defaults of topic configs."""
        for name in sorted({*broker_settings(), *BROKER_DEFAULTS, *WITHOUT_EFFECT}):
            layers = self._configs.broker_layers(image, self._cluster.node_id, name)
            if name == _ADVERTISED and not layers[0].value:
                layers = [ConfigLayer(name, self._registered_addresses(image), ConfigSource.DEFAULT)]
            yield self._shown_broker_config(name, layers)

    def _registered_addresses(self, image: MetadataImage) -> str:
        """Return where clients are sent, if no setting says so: what this agent registered with."""
        agent = image.agents.get(self._cluster.node_id)
        listeners = () if agent is None else agent.listeners
        return ",".join(f"{each.name}://{address_text(each.host, each.port)}" for each in listeners)

    def _whole_cluster(self, image: MetadataImage) -> Iterator[ShownConfig]:
        """Yield only the configs that were set for all brokers, as in Kafka; `shown_layers` says which were not."""
        for name, value in sorted(image.configs.get((ResourceType.BROKER, ""), {}).items()):
            layer = ConfigLayer(name, value, ConfigSource.CLUSTER)
            default = self._configs.broker_layers(image, self._cluster.node_id, name)[-1]
            if shown_layers([layer, default])[0] is layer:
                yield self._shown_broker_config(name, [layer])

    def _shown_broker_config(self, name: str, layers: Sequence[ConfigLayer]) -> ShownConfig:
        if name in BROKER_DEFAULTS:
            topic_config = TOPIC_CONFIGS[BROKER_DEFAULTS[name]]
            meaning = f"Default of {BROKER_DEFAULTS[name]} for topics that do not set it. {documentation(topic_config)}"
            return ShownConfig(name, layers, topic_config.kind, meaning)
        if (config := WITHOUT_EFFECT.get(name)) is not None:
            return ShownConfig(name, layers, config.kind, documentation(config))
        setting = broker_settings()[name]
        is_sensitive = any(holds_secret(name, layer.value) for layer in layers[:-1] or layers)
        return ShownConfig(
            name,
            layers,
            "password" if is_sensitive else setting.kind,
            setting.meaning,
            is_read_only=why_static(name) is not None,
            is_sensitive=is_sensitive,
        )


def _result(
    schema: Schema, entity: Any, asked: Any, resource: ConfigResource, found: list[ShownConfig] | Verdict
) -> DescribeConfigsResult:
    """`found` in the fields of one version, limited to the requested keys."""
    verdict, shown = (found, []) if isinstance(found, Verdict) else (Verdict(), found)
    keys = frozenset(asked.configuration_keys or ())
    return schema.make(
        DescribeConfigsResult,
        error_code=verdict.code,
        error_message=verdict.message,
        resource_type=resource.type,
        resource_name=resource.name,
        configs=tuple(
            rendered(
                schema,
                config,
                with_synonyms=entity.include_synonyms,
                with_documentation=getattr(entity, "include_documentation", False),
            )
            for config in shown
            if not keys or config.name in keys
        ),
    )


def documentation(definition: ConfigDefinition) -> str:
    """The effect of a config, or why it has none."""
    meaning = definition.meaning
    if definition.effect is not ConfigEffect.WORKS:
        meaning = f"{definition.effect.value.capitalize()}: {definition.meaning.removesuffix('.')}."
    refused = [f"Refused: {value}, as {reason}." for value, reason in definition.refused.items()]
    if definition.why_fixed:
        refused.append(f"Refused: any value but the default, as {definition.why_fixed}.")
    return " ".join([meaning, *refused]).strip()


def shown_topic(configs: EffectiveConfigs, image: MetadataImage, topic: str | None) -> Iterator[ShownConfig]:
    """Every config of a topic; None: of a topic without its own configs."""
    for name, definition in TOPIC_CONFIGS.items():
        layers = configs.topic_layers(image, topic, name)
        yield ShownConfig(name, layers, definition.kind, documentation(definition))


def shown_lifecycle_topic(configs: EffectiveConfigs, image: MetadataImage, topic: str) -> Iterator[ShownConfig]:
    """Every config of a topic that is rendered from the lifecycle tables; they cannot be changed."""
    settings = in_force(configs.settings, set_for_all_brokers(image))
    own = lifecycle_configs(
        topic,
        tombstone_retention_ms=settings.segments_tombstone_retention_ms,
        audit_retention_ms=settings.segments_audit_retention_ms,
    )
    for shown in shown_topic(configs, image, None):
        fixed = [ConfigLayer(shown.name, own[shown.name], ConfigSource.TOPIC)] if shown.name in own else []
        yield shown._replace(layers=[*fixed, *shown.layers], is_read_only=True)


def rendered(
    schema: Schema, config: ShownConfig, *, with_synonyms: bool, with_documentation: bool
) -> DescribeConfigsResourceResult:
    """Render a config in the fields of one version; secrets without their values."""
    layers = shown_layers(config.layers)
    strongest = layers[0]
    return schema.make(
        DescribeConfigsResourceResult,
        name=config.name,
        value=None if config.is_sensitive else strongest.value,
        read_only=config.is_read_only,
        config_source=strongest.source,
        is_sensitive=config.is_sensitive,
        synonyms=tuple(
            schema.make(
                DescribeConfigsSynonym,
                name=layer.name,
                value=None if config.is_sensitive else layer.value,
                source=layer.source,
            )
            for layer in layers
        )
        if with_synonyms
        else (),
        config_type=_KINDS[config.kind],
        documentation=config.documentation if with_documentation else None,
    )


def _client_metrics(image: MetadataImage, subscription: str) -> Iterator[ShownConfig]:
    for name, definition in CLIENT_METRICS_CONFIGS.items():
        layers = client_metrics_layers(image, subscription, name)
        yield ShownConfig(name, layers, definition.kind, documentation(definition))


def _loggers() -> Iterator[ShownConfig]:
    for name, level in loggers.levels().items():
        yield ShownConfig(name, [ConfigLayer(name, level, ConfigSource.LOGGER)], "string", "Minimum log level.")
