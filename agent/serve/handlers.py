"""The handlers of a broker's listeners: for clients' APIs, for other agents, for requests that a lost link leaves open.

Place: made by agent/serve/paths.py, once, when all parts are there. Forwarding asks the last ones when another
agent's answer is lost: they answer as an agent that knows no coordinator does.
Invariant: a handler for clients is behind the rule of its API, and its changes are in the audit log. Those without a
coordinator read and write nothing; the answer is COORDINATOR_NOT_AVAILABLE, after which clients look again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from prometheus_client import CollectorRegistry

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.apis.all_apis import BROKER_ROWS, COORDINATOR_ROWS, ROWS
from headrace.agent.apis.api_row import register_rows, routes_of
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.apis.parts import BrokerParts, GroupParts
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.view import ClusterView
from headrace.agent.peers.channel import SHARE_TURN_KEY, ZONE_CACHE_KEY
from headrace.agent.peers.forwarding.service import ForwardService
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


def register_handlers(
    dispatcher: Dispatcher,
    parts: BrokerParts,
    groups: GroupParts,
    forward: ForwardService,
    authorizer: Authorizer,
    audit: AuditLog,
) -> None:
    """Make the handlers of all APIs, and serve them."""
    register_rows(dispatcher, BROKER_ROWS, parts, authorizer, audit, forward.wrap)
    register_rows(dispatcher, COORDINATOR_ROWS, groups, authorizer, audit, forward.wrap)
    dispatcher.register_unadvertised(SHARE_TURN_KEY, groups.share_owner.handle)
    for api_key, handler in forward.serve((*routes_of(ROWS), SHARE_TURN_KEY)).items():
        dispatcher.register_unadvertised(api_key, handler)
    if parts.fetch.zone_cache is not None:
        dispatcher.register_unadvertised(ZONE_CACHE_KEY, parts.fetch.zone_cache.handle)
