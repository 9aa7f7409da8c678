"""The form of an agent's row of an API: its handler, who may ask, what the audit log says, where it is served.

Place: the other modules of agent/apis are made of rows; protocol/api_versions.py has the row of the same API's
versions. Rules, or parts of them, that several groups of APIs have in common are here, too.
Invariant: a handler is registered behind its rule and its audit lines, or not at all.
Source: Kafka 4.1, KafkaApis and ControllerApis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.access.audit import AuditLog, Changes, audited
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import DENIED_UNITS, FAILED, Check, GatedRequest, Rule, gate, split, whole
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.limits.work_slices import ELEMENT_UNITS, TOPIC_UNITS, WorkSlices
from headrace.agent.peers.forwarding.forwarding import Route
from headrace.config.table_configs import NAME, default_name
from headrace.protocol.answers import refused_element
from headrace.protocol.request import RequestHandler, Response
from headrace.protocol.typed import response_header

P = TypeVar("P", contravariant=True)
Wrap = Callable[[Route | None, RequestHandler], RequestHandler]
"""Puts forwarding before a handler."""


@dataclass(frozen=True)
class ApiRow(Generic[P]):
    """One API as an agent serves it. `P`: what its handler is made of."""

    handler: Callable[[P], RequestHandler]
    rule: Rule
    changes: Changes | None = None
    """Lines of the audit log; None for an API that changes nothing that an administrator looks after."""
    route: Route | None = None
    """The rule that chooses the agent, if the clients see all agents as one; None: any."""
    is_advertised: bool = True
    """It is in ApiVersions. Others are for the tools of Headrace."""


def register_rows(
    dispatcher: Dispatcher,
    rows: Mapping[int, ApiRow[P]],
    parts: P,
    authorizer: Authorizer,
    audit: AuditLog,
    forward: Wrap = lambda route, handler: handler,
) -> None:
    """Make the handlers, and serve them."""
    for api_key, row in rows.items():
        register = dispatcher.register if row.is_advertised else dispatcher.register_unadvertised
        served = audited(row.changes, forward(row.route, row.handler(parts)), audit)
        register(api_key, gate(authorizer, row.rule, served))


def routes_of(rows: Mapping[int, ApiRow[P]]) -> dict[int, Route]:
    """List the APIs that other agents may serve, each with its route."""
    return {api_key: row.route for api_key, row in rows.items() if row.route is not None}


def unadvertised(row: ApiRow[P]) -> ApiRow[P]:
    """The same row, served and not named in ApiVersions."""
    return replace(row, is_advertised=False)


_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC
_GROUP_DENIED, _TOPIC_DENIED = FAILED[_GROUP], FAILED[_TOPIC]
EVERYONE = Rule(None, (), "all clients, before a login")
ALTER_CLUSTER = whole(AclOperation.ALTER, AclResource.CLUSTER)
DESCRIBE_CLUSTER = whole(AclOperation.DESCRIBE, AclResource.CLUSTER)
TABLE_NAMES = "each `table.name` that is not its topic's own"
OPERATIONS_UNITS = 30
"""What it costs to find all operations that a client may do with a group."""
_ASSIGNMENTS = ("assignment", "target_assignment")
"""The assignment of a member; share groups have no target."""
_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def foreign_tables(ask: GatedRequest, topic: str, configs: Iterable[Any]) -> list[str]:
    """Return the names of tables that the configs of a request give a topic, without its own and the one that is set
    already. A client may use such a name if it may do the same to a topic of this name.
    """
    own = "", default_name(topic), ask.image.topic_configs(topic).get(NAME)
    given = [(each.value or "").strip() for each in configs if each.name == NAME]
    return [name for name in given if name not in own]


def group_operations(ask: GatedRequest, group: Any) -> Any:
    """Add the operations that the client may do, if it asked for them."""
    if not getattr(ask.entity, "include_authorized_operations", False) or group.error_code:
        return group
    return dataclasses.replace(group, authorized_operations=ask.access.operations(_GROUP, group.group_id))


def _assigned_topics(group: Any) -> Iterator[list[str]]:
    """Yield the topics of each member."""
    for member in group.members:
        kinds = filter(None, (getattr(member, kind, None) for kind in _ASSIGNMENTS))
        yield [each.topic_name for assignment in kinds for each in assignment.topic_partitions]


TopicsOfGroup = Callable[[Any], Iterable[list[str]]]
"""The topics that a description of a group names, in parts."""


def describe_groups(ask: GatedRequest, topics: TopicsOfGroup, hidden: str) -> Awaitable[Response]:
    """Describe as Kafka does: a group with a topic that the client may not describe is not described at all. `hidden`:
    why not, for the client.
    """

    async def shown(group: Any, slices: WorkSlices) -> Any:
        names = set[str]()
        for found in topics(group):
            names.update(found)
            await slices.did(ELEMENT_UNITS + len(found))
        for name in await slices.in_order(list(names)):
            if not ask.allows(AclOperation.DESCRIBE, _TOPIC, name):
                break
            await slices.did(TOPIC_UNITS)
        else:
            await slices.did(OPERATIONS_UNITS)
            return group_operations(ask, group)
        await slices.did(DENIED_UNITS)
        refused = ask.refused("groups", group.group_id, _TOPIC_DENIED)
        return dataclasses.replace(refused, error_message=hidden)

    async def change(entity: Any) -> Any:
        slices = WorkSlices()
        return dataclasses.replace(entity, groups=tuple([await shown(group, slices) for group in entity.groups]))

    return split(
        ask,
        "group_ids",
        "groups",
        lambda group_id: ask.allows(AclOperation.DESCRIBE, _GROUP, group_id),
        lambda group_id: ask.refused("groups", group_id, _GROUP_DENIED),
        change,
    )


def heartbeat_with_topics(ask: GatedRequest) -> Awaitable[Response]:
    if not ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id):
        return ask.refuse(_GROUP_DENIED)
    names = ask.entity.subscribed_topic_names or ()
    if not all(ask.allows(AclOperation.DESCRIBE, _TOPIC, name) for name in dict.fromkeys(names)):
        return ask.refuse(_TOPIC_DENIED)
    return ask.pass_on()


def refused_topic(ask: GatedRequest, topic: Any, code: ErrorCode) -> Any:
    return refused_element(ask.element_type("groups", "topics"), topic, code)


def raw_answer(ask: GatedRequest, body: bytes) -> Awaitable[Response]:
    return ask.answer_raw(response_header(ask.request.correlation_id, False), body)


HEARTBEAT_CHECKS = (
    Check(AclOperation.READ, _GROUP, _GROUP_DENIED),
    Check(AclOperation.DESCRIBE, _TOPIC, _TOPIC_DENIED, "all subscribed names"),
)
DESCRIBE_WITH_TOPICS = Rule(
    partial(describe_groups, topics=_assigned_topics, hidden=_HIDDEN_TOPICS),
    (
        Check(AclOperation.DESCRIBE, _GROUP, _GROUP_DENIED, "each group"),
        Check(AclOperation.DESCRIBE, _TOPIC, _TOPIC_DENIED, "all topics that are assigned in the group"),
    ),
)
