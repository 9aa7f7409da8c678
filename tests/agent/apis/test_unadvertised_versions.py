"""X1: an API that is not advertised is served in the versions that it has, and in no other."""

from __future__ import annotations

import pytest

from headrace.agent.apis.dispatch import Dispatcher
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.request import ClientConnection, CloseConnection, Request, Response


@pytest.mark.requirement("X1")
async def test_a_version_that_an_unadvertised_api_does_not_have_closes_the_connection() -> None:
    dispatcher = Dispatcher()
    served: list[int] = []

    async def handler(request: Request) -> Response:
        served.append(request.api_version)
        return Response([b""])

    dispatcher.register_unadvertised(ApiKey.FETCH_SNAPSHOT, handler)
    newest = APIS[ApiKey.FETCH_SNAPSHOT].max_version
    for version in (newest, newest + 1):
        client = ClientConnection(connection_id=1, peer="127.0.0.1:1", listener="PLAINTEXT")
        request = Request(client, ApiKey.FETCH_SNAPSHOT, version, 1, "c", memoryview(b""), 0.0)
        if version == newest:
            await dispatcher.handle(request)
        else:
            with pytest.raises(CloseConnection, match="version not served"):
                await dispatcher.handle(request)
    assert served == [newest]
