"""Handlers of group requests for what a lost link leaves open: they answer as an agent that knows no coordinator does.

Place: made by paths.py for forwarding, which asks them when another agent's answer is lost.
Invariant: they read and write nothing; the answer is COORDINATOR_NOT_AVAILABLE, after which clients look again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from prometheus_client import CollectorRegistry

from headrace.agent.apis.all_apis import COORDINATOR_ROWS
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.view import ClusterView
from headrace.agent.serve.groups import compose_groups
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.process_context import ProcessContext
from headrace.protocol.request import RequestHandler


def without_coordinator(context: ProcessContext, view: ClusterView) -> Mapping[int, RequestHandler]:
    """Return the handlers by API key."""
    parts = compose_groups(replace(context, registry=CollectorRegistry()), _NoCoordinator(view))
    return {api_key: row.handler(parts) for api_key, row in COORDINATOR_ROWS.items()}


class _NoCoordinator:
    """A ClusterView in which no group has a coordinator: handlers answer COORDINATOR_NOT_AVAILABLE."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def cluster_id(self) -> str:
        return self._view.cluster_id

    @property
    def commit_shards(self) -> int:
        return self._view.commit_shards

    @property
    def node_id(self) -> int:
        return self._view.node_id

    @property
    def broker_epoch(self) -> int:
        return self._view.broker_epoch

    @property
    def image(self) -> MetadataImage:
        return self._view.image

    @property
    def routes(self) -> Routes:
        return self._view.routes

    async def catch_up(self) -> MetadataImage:
        return await self._view.catch_up()

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return self._view.leader(partition_key, zone)

    def coordinator(self, group_id: str) -> AgentImage | None:
        return None
