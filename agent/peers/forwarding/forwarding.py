"""Decides which agent serves a request about groups or about one agent: this one, another one, or several.

Place: around the handlers of those APIs, between the dispatcher and them; links.py sends what another agent serves.
The rows of agent/apis have a Route, which says where clients see all agents as one.
Invariant: a request goes to the agents that the routing names now, once each. A request that was forwarded is served
here, so there is one hop. What a lost link leaves open is answered as an agent does that knows no coordinator:
COORDINATOR_NOT_AVAILABLE. A request with elements that different agents serve is taken apart: every element is in
exactly one part. The answer has what the answers of the parts have; its other fields, such as an error for the whole
request, are those of the first part that has an error, else of the first one. Without a shared address a request
costs one comparison more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.peers.forwarding.links import Answer, Links
from headrace.agent.peers.forwarding.wire import ForwardOutcome
from headrace.metastore.log.image import AgentImage
from headrace.protocol import wire
from headrace.protocol.api_versions import APIS
from headrace.protocol.request import CloseConnection, Request, RequestHandler, Response
from headrace.protocol.typed import decode, entity_of, reply, schema
from headrace.storage.errors import TooManyElementsError

_BROKER, _BROKER_LOGGER = 4, 8
"""ConfigResource types that name an agent."""


class Whole(enum.Enum):
    """Routes of requests that are not taken apart."""

    GROUP_IN_FIRST_FIELD = "the coordinator of the group that the first field names"
    GROUP_ID = "the coordinator of the group in the field group_id"
    EVERY_AGENT = "every agent answers, and the groups of all answers are one list"


def _itself(element: Any) -> str | None:
    return str(element)


def _nothing(element: Any) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Elements:
    """Paths of the elements in a request and in its answer; which group or agent an element
    names.
    """

    asked: str
    answered: str
    group_of: Callable[[Any], str | None] = _itself
    node_of: Callable[[Any], int | None] = _nothing
    first_version: int = 0
    """Requests of versions before it have one group in their first field."""


Route = Whole | Elements


def of_brokers(answered: str) -> Elements:
    """Config resources: those of one agent go to it."""
    return Elements("resources", answered, _nothing, _broker)


def _broker(element: Any) -> int | None:
    """The node id in a config resource."""
    name = element.resource_name
    if element.resource_type not in (_BROKER, _BROKER_LOGGER) or not (name.isascii() and name.isdecimal()):
        return None
    return int(name[:20])


_LISTED = "groups"
"""The field in which ListGroups lists them."""
Part = tuple[AgentImage | None, Request]


class Forwarding:
    """Wraps handlers."""

    def __init__(
        self,
        view: ClusterView,
        shared: SharedAddress,
        links: Links,
        unavailable: Mapping[int, RequestHandler],
    ) -> None:
        """`unavailable`: handlers that answer as if no coordinator was known."""
        self._view, self._shared, self._links, self._unavailable = view, shared, links, unavailable

    def wrap(self, route: Route, local: RequestHandler) -> RequestHandler:
        """The handler of an API with this route; `local` serves it here."""
        if isinstance(route, Elements):
            serve: Callable[[Request, RequestHandler], Awaitable[Response]] = partial(self._by_element, route)
        else:
            serve = {
                Whole.EVERY_AGENT: self._of_all,
                Whole.GROUP_IN_FIRST_FIELD: self._of_one_group,
                Whole.GROUP_ID: self._of_group_id,
            }[route]

        def handle(request: Request) -> Awaitable[Response]:
            client = request.connection
            if client.is_forwarded or not self._shared.forwards(client.listener):
                return local(request)
            return serve(request, local)

        return handle

    def _of_one_group(self, request: Request, local: RequestHandler) -> Awaitable[Response]:
        """Sent before this returns: requests of a connection keep their order."""
        try:
            flexible = request.api_key in APIS and schema(request.api_key, request.api_version).flexible
            group_id, _ = wire.read_string(request.body, 0, flexible)
        except wire.MALFORMED:
            return local(request)  # which refuses it
        agent = self._other(self._view.coordinator(group_id))
        return local(request) if agent is None else self._to(agent, request, local)

    def _of_group_id(self, request: Request, local: RequestHandler) -> Awaitable[Response]:
        """The group is not in the first field."""
        _, entity = decode(request)
        agent = self._other(self._view.coordinator(entity.group_id))
        return local(request) if agent is None else self._to(agent, request, local)

    def _by_element(self, route: Elements, request: Request, local: RequestHandler) -> Awaitable[Response]:
        """Each element goes to its agent."""
        if request.api_version < route.first_version:
            return self._of_one_group(request, local)
        _, entity = decode(request)
        found = parts(request, entity, route.asked, partial(self._agent_of, route))
        if len(found) == 1:
            agent, _ = found[0]
            return local(request) if agent is None else self._to(agent, request, local)
        return self._in_parts(request, found, local, route.answered)

    def _of_all(self, request: Request, local: RequestHandler) -> Awaitable[Response]:
        """ListGroups: each agent lists those that it coordinates."""
        others = [agent for agent in self._view.image.live_agents() if agent.node_id != self._view.node_id]
        if not others:
            return local(request)
        return self._in_parts(request, [(None, request), *((agent, request) for agent in others)], local, _LISTED)

    def _to(self, agent: AgentImage, request: Request, local: RequestHandler) -> Awaitable[Response]:
        return self._finish(request, self._links.forward(agent, request), local)

    def _in_parts(
        self, request: Request, found: list[Part], local: RequestHandler, answered: str
    ) -> Awaitable[Response]:
        started = [local(part) if agent is None else self._to(agent, part, local) for agent, part in found]
        return self._join(request, started, answered)

    async def _join(self, request: Request, started: list[Awaitable[Response]], answered: str) -> Response:
        answers = await asyncio.gather(*started)
        answer = reply(request, joined(request, answers, answered))
        answer.reserved_bytes = sum(each.reserved_bytes for each in answers)
        return answer

    async def _finish(self, request: Request, pending: asyncio.Future[Answer], local: RequestHandler) -> Response:
        """The other agent's answer as this agent's."""
        outcome, rest = await pending
        match outcome:
            case ForwardOutcome.ANSWERED:
                return Response([rest])
            case ForwardOutcome.NO_ANSWER:
                return Response(None)
            case ForwardOutcome.CLOSE:
                raise CloseConnection(bytes(rest).decode(errors="replace"))
            case ForwardOutcome.TOO_MANY_ELEMENTS:
                raise TooManyElementsError(bytes(rest).decode(errors="replace"))
        return await self._unavailable.get(request.api_key, local)(request)

    def _agent_of(self, route: Elements, element: object) -> AgentImage | None:
        """The other agent that serves this element of a request; None: this agent."""
        group_id = route.group_of(element)
        if group_id is not None:
            return self._other(self._view.coordinator(group_id))
        node_id = route.node_of(element)
        agent = None if node_id is None else self._view.image.agents.get(node_id)
        return self._other(agent if agent is not None and agent.live else None)

    def _other(self, agent: AgentImage | None) -> AgentImage | None:
        return None if agent is None or agent.node_id == self._view.node_id else agent


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
