"""The requests that change configs or list the resources that can have some.

AlterConfigs (key 33, versions 0-2), IncrementalAlterConfigs (44, versions 0-1), ListConfigResources (74, versions
0-1).

Place: request fields to ConfigRecords in the metadata log; log levels are kept in this process. The list is answered
from one image, in slices: a cluster may have 100,000 topics.
Invariant: each resource gets a separate result; the accepted ones are appended together. A change that was
confirmed is in this agent's image. Version 0 of the list asks only for subscriptions to client metrics.
Source: KIP-133 (all configs of a resource at once), KIP-339 (one by one); KIP-714 (version 0 of the list), KIP-1142
(resource types).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
from kio.schema.list_config_resources.v1.response import ConfigResource as AnsweredConfigResource

from headrace.agent.cluster.log_change import PATIENCE_SECONDS, LogChange, Verdict
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.refusal_log import RefusalLog
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.topics.configs import loggers
from headrace.agent.topics.configs.rules import ConfigResource, Operation, ResourceType, Wish, judge, replacing
from headrace.agent.topics.metadata.described_topics import SortedTopics
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

Asked = list[tuple[ConfigResource, list[Wish]]]


class _Altering:
    """The common part of both requests: from resources and requested changes to one verdict each."""

    def __init__(self, change: LogChange, configs: EffectiveConfigs) -> None:
        self._change, self._configs = change, configs
        self._refusals = RefusalLog()

    async def answer(self, request: Request, wish: Callable[[Any], Wish], *, replace: bool) -> Response:
        """`wish` converts a config of the request to a change."""
        schema, entity = decode(request)
        asked = [
            (
                ConfigResource(resource.resource_type, resource.resource_name),
                [wish(config) for config in resource.configs],
            )
            for resource in entity.resources
        ]
        deadline = request.received_at + PATIENCE_SECONDS
        verdicts = await self._alter(asked, deadline, validate_only=entity.validate_only, replace=replace)
        for (resource, _), verdict in zip(asked, verdicts, strict=True):
            if resource.type == ResourceType.TOPIC and verdict.code is ErrorCode.invalid_config:
                self._refusals.refused(request, f"topic {resource.name}: {verdict.message}")
        return _answer(request, schema, asked, verdicts)

    async def _alter(self, asked: Asked, deadline: float, *, validate_only: bool, replace: bool) -> list[Verdict]:
        times = Counter(resource for resource, _ in asked)
        verdicts = [Verdict()] * len(asked)

        def records(image: MetadataImage) -> Sequence[ConfigRecord]:
            found: list[ConfigRecord] = []
            for number, (resource, wishes) in enumerate(asked):
                if times[resource] > 1:
                    verdicts[number] = Verdict(ErrorCode.invalid_request, "duplicate resource")
                elif resource.type == ResourceType.BROKER_LOGGER:
                    verdicts[number] = self._judge_loggers(resource, wishes, replace=replace)
                else:
                    wanted = replacing(image, resource, wishes) if replace else wishes
                    judged = judge(self._configs, image, resource, wanted)
                    verdicts[number] = judged if isinstance(judged, Verdict) else Verdict()
                    found += [] if isinstance(judged, Verdict) else judged
            return found

        whole = await self._carry_out(records, deadline, validate_only=validate_only)
        for number, (resource, wishes) in enumerate(asked):
            if verdicts[number].code is not ErrorCode.none:
                continue
            if resource.type != ResourceType.BROKER_LOGGER:
                verdicts[number] = whole
            elif not validate_only:
                loggers.change(wishes)
        return verdicts

    async def _carry_out(
        self, records: Callable[[MetadataImage], Sequence[ConfigRecord]], deadline: float, *, validate_only: bool
    ) -> Verdict:
        if not validate_only:
            return await self._change.append(records, deadline)
        try:
            records(await self._change.cluster.catch_up())
        except HeadraceError as error:
            return Verdict.failed(error)
        return Verdict()

    def _judge_loggers(self, resource: ConfigResource, wishes: list[Wish], *, replace: bool) -> Verdict:
        if replace:
            return Verdict(ErrorCode.invalid_request, "log levels can only be changed with IncrementalAlterConfigs")
        if resource.name != str(self._change.cluster.node_id):
            message = f"log levels can only be changed at their broker: this is {self._change.cluster.node_id}"
            return Verdict(ErrorCode.invalid_request, message)
        return loggers.why_refused(wishes)


class AlterConfigs(_Altering):
    """The handler of key 33: the resource then has exactly the configs of the request."""

    async def __call__(self, request: Request) -> Response:
        return await self.answer(request, lambda config: Wish(config.name, Operation.SET, config.value), replace=True)


class IncrementalAlterConfigs(_Altering):
    """The handler of key 44: other configs are unchanged."""

    async def __call__(self, request: Request) -> Response:
        return await self.answer(
            request, lambda config: Wish(config.name, config.config_operation, config.value), replace=False
        )


def _answer(request: Request, schema: Schema, asked: Asked, verdicts: Sequence[Verdict]) -> Response:
    responses = tuple(
        schema.make(
            AlterConfigsResourceResponse,
            error_code=verdict.code,
            error_message=verdict.message,
            resource_type=resource.type,
            resource_name=resource.name,
        )
        for (resource, _), verdict in zip(asked, verdicts, strict=True)
    )
    return reply(request, schema.response(responses=responses))


HAVE_CONFIGS = (ResourceType.CLIENT_METRICS, ResourceType.GROUP)
"""Listed if configs were set for them."""


class ListConfigResources:
    """List the resources that can have configs."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._order = SortedTopics()

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, ListConfigResourcesRequest)
        wanted = getattr(entity, "resource_types", (ResourceType.CLIENT_METRICS,)) or (*ResourceType,)
        code, slices = ErrorCode.none, WorkSlices()
        found: Sequence[ConfigResource] = ()
        if any(kind not in (*ResourceType,) for kind in wanted):
            code = ErrorCode.unsupported_version  # Kafka's answer for an unknown type
        else:
            try:
                image = await self._cluster.catch_up()
                found = await self._resources(image, frozenset(wanted), slices)
            except HeadraceError as error:
                code = ErrorCode(admin_error(error))

        def made(resource: ConfigResource) -> AnsweredConfigResource:
            return schema.make(AnsweredConfigResource, resource_name=resource.name, resource_type=resource.type)

        resources = await slices.each(made, found)
        return reply(request, schema.response(error_code=code, config_resources=resources))

    async def _resources(
        self, image: MetadataImage, wanted: frozenset[int], slices: WorkSlices
    ) -> Sequence[ConfigResource]:
        """All topics and brokers; groups and subscriptions only if configs were set for them."""
        found: list[ConfigResource] = []
        if ResourceType.TOPIC in wanted:
            names = await self._order.names(image, slices)
            found += await slices.each(lambda name: ConfigResource(ResourceType.TOPIC, name), names, 1)
        agents = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        found += [
            ConfigResource(kind, str(node_id)) for node_id in sorted(image.agents) for kind in agents if kind in wanted
        ]
        configured = [key for key in image.configs if key[0] in HAVE_CONFIGS and key[0] in wanted]
        await slices.did(len(image.configs) // 8)  # those of topics were only passed over
        for resource_type, name in await slices.in_order(configured):
            found.append(ConfigResource(resource_type, name))
        return found
