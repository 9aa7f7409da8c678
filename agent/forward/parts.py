"""Requests with elements that different agents serve: taken apart by agent, and their answers put together.

Place: under forwarding.py; pure.
Invariant: every element is in exactly one part. An answer has what the answers of the parts have; its other fields,
such as an error for the whole request, are those of the first part that has an error, else of the first one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.metastore.log.image import AgentImage
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import entity_of, schema

_BROKER, _BROKER_LOGGER = 4, 8
"""ConfigResource types that name an agent."""


def _itself(element: Any) -> str | None:
    return str(element)


def _nothing(element: Any) -> None:
    return None


def _broker(element: Any) -> int | None:
    """The node id in a config resource."""
    name = element.resource_name
    if element.resource_type not in (_BROKER, _BROKER_LOGGER) or not (name.isascii() and name.isdecimal()):
        return None
    return int(name[:20])


@dataclass(frozen=True, slots=True)
class Elements:
    """Where a request has its elements, and where its answer has them; which group or agent an element names."""

    asked: str
    answered: str
    group_of: Callable[[Any], str | None] = _itself
    node_of: Callable[[Any], int | None] = _nothing


BY_ELEMENT: dict[ApiKey, Elements] = {
    ApiKey.OFFSET_FETCH: Elements("groups", "groups", lambda group: str(group.group_id)),
    ApiKey.DESCRIBE_GROUPS: Elements("groups", "groups"),
    ApiKey.DELETE_GROUPS: Elements("groups_names", "results"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Elements("group_ids", "groups"),
    ApiKey.DESCRIBE_CONFIGS: Elements("resources", "results", _nothing, _broker),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Elements("resources", "responses", _nothing, _broker),
}
_LISTED = "groups"
"""Where ListGroups has them."""

Part = tuple[AgentImage | None, Request]


def parts(request: Request, entity: Any, agent_of: Callable[[int, Any], AgentImage | None]) -> list[Part]:
    """(the other agent or None for this one, a request with its elements). One part is the request itself."""
    name = BY_ELEMENT[ApiKey(request.api_key)].asked
    by_node: dict[int, tuple[AgentImage | None, list[Any]]] = {}
    for element in getattr(entity, name) or ():
        agent = agent_of(request.api_key, element)
        by_node.setdefault(-1 if agent is None else agent.node_id, (agent, []))[1].append(element)
    if len(by_node) < 2:
        return [(agent, request) for agent, _ in by_node.values()] or [(None, request)]
    return [
        (agent, _with_body(request, dataclasses.replace(entity, **{name: tuple(elements)})))
        for agent, elements in by_node.values()
    ]


def joined(request: Request, answers: Sequence[Response]) -> Any:
    """The entity of one answer with the elements of all."""
    elements = BY_ELEMENT.get(ApiKey(request.api_key))
    name = _LISTED if elements is None else elements.answered
    entities = [entity_of(request, answer) for answer in answers]
    first = next((one for one in entities if getattr(one, "error_code", 0)), entities[0])
    together = tuple(each for one in entities for each in getattr(one, name))
    return dataclasses.replace(first, **{name: together})


def _with_body(request: Request, entity: Any) -> Request:
    body = schema(request.api_key, request.api_version).encode_request(entity)
    return dataclasses.replace(request, body=body, entity=entity)
