"""Fills the table of a broker's listeners: clients' APIs, and what other agents ask.

Place: called by agent/serve/paths.py, once, when all parts are there.
Invariant: a handler for clients is behind the rule of its API, and its changes are in the audit log.
"""

from __future__ import annotations

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.apis.all_apis import BROKER_ROWS, COORDINATOR_ROWS, ROWS
from headrace.agent.apis.api_row import register_rows, routes_of
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.apis.group_parts import GroupParts
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.peers.channel import SHARE_TURN_KEY, ZONE_CACHE_KEY
from headrace.agent.peers.forwarding.service import ForwardService


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
