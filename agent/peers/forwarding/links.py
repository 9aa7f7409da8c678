"""This agent's links to all others: opened when the first request needs one, closed when the agent leaves.

Place: between forwarding.py and link.py.
Invariant: one link per registration of an agent, so envelopes of one client's connection to one agent keep their
order. When a client's connection ends, every link on which it was named says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from headrace.agent.peers.forwarding.link import LOST, Answer, ForwardLink
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import ClientConnection, Request

_LONG = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Requests that may wait for other members for minutes."""

MakeLink = Callable[[int, Listener], ForwardLink]


class Links:
    """Created for one agent; `on_image` gets every new image."""

    def __init__(self, make: MakeLink, inter_broker: str | None) -> None:
        self._make = make
        self._inter_broker = inter_broker
        self._links: dict[tuple[int, int], ForwardLink] = {}
        self._waiting: dict[asyncio.Future[Answer], int] = {}
        """Requests without an answer -> API key."""
        self._clients: set[ClientConnection] = set()
        """Open connections of clients that a link has named."""
        self._closing: set[asyncio.Task[None]] = set()
        self._draining = False

    def forward(self, agent: AgentImage, request: Request) -> asyncio.Future[Answer]:
        """Send the request to this agent, in the order of the calls."""
        if self._draining and request.api_key in _LONG:
            return _lost()
        key = agent.node_id, agent.broker_epoch
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = self._make(agent.node_id, agent.endpoint(self._inter_broker))
        client = request.connection
        if client not in self._clients:
            self._clients.add(client)
            client.call_when_closed(partial(self._ended, client))
        answer = link.forward(request)
        if not answer.done():
            self._waiting[answer] = request.api_key
            answer.add_done_callback(self._forget)
        return answer

    def on_image(self, image: MetadataImage) -> None:
        """Close the links to registrations that are gone."""
        registered = {(agent.node_id, agent.broker_epoch) for agent in image.agents.values()}
        for key in self._links.keys() - registered:
            task = asyncio.get_running_loop().create_task(self._links.pop(key).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def drain(self) -> None:
        """Give up what may wait for minutes: clients continue at other agents."""
        self._draining = True
        for answer, api_key in list(self._waiting.items()):
            if api_key in _LONG and not answer.done():
                answer.set_result(LOST)

    async def close(self) -> None:
        """Close every link."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()), *self._closing)

    def _ended(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        for link in self._links.values():
            link.ended(client.connection_id)

    def _forget(self, answer: asyncio.Future[Answer]) -> None:
        self._waiting.pop(answer, None)


def _lost() -> asyncio.Future[Answer]:
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    answer.set_result(LOST)
    return answer
