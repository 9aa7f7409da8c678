"""An agent before it serves: requests wait, those that come later do not overtake them; a start may fail."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace.agent.cluster.heartbeats import HeartbeatHealth
from headrace.agent.serve.broker import Broker
from headrace.cli.process.open_process import compose_agent
from headrace.config.settings import Settings
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import ClientConnection, Promise, Request, Response
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from load.contexts import a_context
from tests.manual_clock import ManualClock
from tests.nouns import NOUNS, nouns


class _Kept(Promise):
    def response(self) -> Response:
        return Response([])


def _request(correlation_id: int) -> Request:
    return Request(ClientConnection(1, "peer"), ApiKey.METADATA, 12, correlation_id, None, memoryview(b""), 0.0)


async def test_a_request_does_not_overtake_one_that_waited_for_the_agent_to_serve() -> None:
    clock = ManualClock()
    no_metastore = nouns(None)
    agent = Broker(
        a_context(no_metastore, clock, store=MemoryStore(clock)),
        health=HeartbeatHealth(clock),
        is_active_controller=lambda: False,
        reached_here=frozenset,
    )
    started: list[int] = []

    def handle(request: Request) -> Promise:
        started.append(request.correlation_id)
        promise = _Kept()
        promise.answer()
        return promise

    agent._dispatcher.register(ApiKey.METADATA, handle)
    early = [asyncio.ensure_future(agent._handle(_request(number))) for number in range(2)]
    await clock.settle()
    assert started == []
    agent._serving.set()
    early.append(asyncio.ensure_future(agent._handle(_request(2))))
    await asyncio.gather(*early)
    assert started == [0, 1, 2]
    assert isinstance(agent._handle(_request(3)), Promise), "once all of them have started, nothing waits"
    assert started == [0, 1, 2, 3]


class _NoMetastore:
    """Answers only goodbyes."""

    cluster_id = "none"

    async def close(self) -> None:
        """Nothing was opened."""

    def leave_connections(self) -> None:
        """There are none."""

    def commits_made(self) -> int:
        """It has made none."""
        return 0

    def refusal(self) -> None:
        """It refuses by errors."""

    def name_life(self, life: int) -> None:
        """Nothing is written."""

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self

        async def fail(*args: object, **more: object) -> None:
            raise UnavailableError(f"{name} failed")

        return fail


async def test_an_agent_that_loses_its_metastore_while_starting_says_so_and_stops() -> None:
    clock = ManualClock()
    settings = Settings(listeners="PLAINTEXT://127.0.0.1:0", http_port=0)
    metastore = cast(Any, _NoMetastore())
    process, _ = compose_agent(a_context(metastore, clock, store=MemoryStore(clock), settings=settings))
    with pytest.raises(UnavailableError):
        await clock.run(process.start())
    await process.stop()
