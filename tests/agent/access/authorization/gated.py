"""One API behind the gate: what is handed on, and what is answered.

Place: for tests of rights.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from headrace.agent.access.authorization.authorizer import Authorizer, Denial
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import gate
from headrace.agent.apis.acl_table import RULES
from headrace.config.settings import STANDARD_AUTHORIZER, Settings
from headrace.metastore.log.image import TopicImage
from headrace.protocol.answers import blank
from headrace.protocol.api_versions import APIS
from headrace.protocol.request import ClientConnection, Request, RequestHandler, Response
from headrace.protocol.typed import decode, reply, schema
from tests.acl_matrix.case import build
from tests.agent.access.acls import a_grant
from tests.agent.access.authorization.test_data_path import set_acls
from tests.agent.cluster.standing_view import StandingView

TOPIC_ID = uuid.UUID(int=7)


class Gated:
    """One API behind its rule. `seen` are the requests that reached the handler; it answers with `answer`."""

    def __init__(self, api_key: int, **settings: Any) -> None:
        self.view = StandingView(4, node_id=1, broker_epoch=1)
        topic = TopicImage(TOPIC_ID, 100, "known", 1, 1, (0,))
        self.view.head = replace(
            self.view.head,
            topics_by_name=MappingProxyType({"known": topic}),
            topics_by_id=MappingProxyType({TOPIC_ID: topic}),
        )
        self.api_key = api_key
        self.seen: list[Any] = []
        self.denials: list[Denial] = []
        self.authorizer = Authorizer(Settings(authorizer_class_name=STANDARD_AUTHORIZER, **settings), self.view)
        self.authorizer.on_denied.append(lambda _, denial: self.denials.append(denial))
        self._handle = gate(self.authorizer, RULES[api_key], self._serve)
        self.connection = ClientConnection(1, "10.0.0.1:1", "User:alice")
        self.answer: dict[str, Any] = {}
        self.handler: RequestHandler | None = None
        """The handler behind the gate, in place of `answer`."""
        self._acls: frozenset[Any] = frozenset()

    async def _serve(self, request: Request) -> Response:
        self.seen.append(request.body if request.api_key not in APIS else decode(request)[1])
        if self.handler is not None:
            return await self.handler(request)
        if request.api_key not in APIS:
            return Response([b"served"])
        return reply(request, replace(blank(request.api_key, request.api_version), **self.answer))

    async def ask(self, version: int, **values: Any) -> Any:
        found = schema(self.api_key, version)
        body = found.encode_request(build(found.request_type, values))
        response = await self._handle(Request(self.connection, self.api_key, version, 1, "c", body, 0.0))
        assert response.buffers is not None
        return found.decode_response(b"".join(response.buffers))

    async def ask_raw(self, body: bytes) -> bytes:
        response = await self._handle(Request(self.connection, self.api_key, 0, 1, "c", memoryview(body), 0.0))
        assert response.buffers is not None
        return b"".join(response.buffers)

    def grant(self, *grants: tuple[AclOperation, str], of: AclResource = AclResource.TOPIC) -> None:
        """Give the client these rights, and no others."""
        self._acls = frozenset()
        self.grant_also(*grants, of=of)

    def grant_also(self, *grants: tuple[AclOperation, str], of: AclResource) -> None:
        """Give the client these rights, too."""
        self._acls |= {replace(a_grant(operation, name, of), principal="User:alice") for operation, name in grants}
        set_acls(self.view, self._acls)
