"""Requests with elements that different agents serve: taken apart by agent, and their answers put together.

Place: under forwarding.py; pure.
Invariant: every element is in exactly one part. An answer has what the answers of the parts have; its other fields,
such as an error for the whole request, are those of the first part that has an error, else of the first one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from headrace.metastore.log.image import AgentImage
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import entity_of, schema

Part = tuple[AgentImage | None, Request]


def parts(request: Request, entity: Any, asked: str, agent_of: Callable[[Any], AgentImage | None]) -> list[Part]:
    """(the other agent or None for this one, a request with its elements of the array `asked`). One part is the
    request itself."""
    by_node: dict[int, tuple[AgentImage | None, list[Any]]] = {}
    for element in getattr(entity, asked) or ():
        agent = agent_of(element)
        by_node.setdefault(-1 if agent is None else agent.node_id, (agent, []))[1].append(element)
    if len(by_node) < 2:
        return [(agent, request) for agent, _ in by_node.values()] or [(None, request)]
    return [
        (agent, _with_body(request, dataclasses.replace(entity, **{asked: tuple(elements)})))
        for agent, elements in by_node.values()
    ]


def joined(request: Request, answers: Sequence[Response], answered: str) -> Any:
    """The entity of one answer, with the elements of all in its array `answered`."""
    entities = [entity_of(request, answer) for answer in answers]
    first = next((one for one in entities if getattr(one, "error_code", 0)), entities[0])
    together = tuple(each for one in entities for each in getattr(one, answered))
    return dataclasses.replace(first, **{answered: together})


def _with_body(request: Request, entity: Any) -> Request:
    body = schema(request.api_key, request.api_version).encode_request(entity)
    return dataclasses.replace(request, body=body, entity=entity)
