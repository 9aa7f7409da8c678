"""Finds the handler of each request and knows which APIs the agent serves.

Place: between the listener and the handlers of produce, fetch, groups, admin and cluster.
Invariant: exactly the registered APIs are advertised, except those between agents. A request for another API or
version closes its connection, as in Kafka: the client could not read a response in another version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator

from kio.schema.errors import ErrorCode

from headrace.metastore.log.image import MetadataImage
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS, Api, ApiVersionsHandler
from headrace.protocol.produce_codec import decode_produce, encode_produce_response, refuse
from headrace.protocol.request import CloseConnection, Request, RequestHandler, Response
from headrace.protocol.typed import Schema, schema

FIRST_PRODUCE_VERSION = 3
"""Record batches v2. Lower versions have formats that Kafka 4 does not support either."""
_API_VERSIONS, _PRODUCE = int(ApiKey.API_VERSIONS), int(ApiKey.PRODUCE)
"""A plain int: looking up and comparing an enum's member is Python code, for every request."""


class Dispatcher:
    """A table of handlers, itself a Handler: `KafkaListener(dispatcher.handle, ...)`."""

    def __init__(self, image: Callable[[], MetadataImage] = MetadataImage) -> None:
        """`image` returns the newest image, for ApiVersions."""
        self._image = image
        self._handlers: dict[int, RequestHandler] = {}
        self._unadvertised: dict[int, RequestHandler] = {}
        self._answer_versions = ApiVersionsHandler(self.served(), image)

    def served(self) -> list[Api]:
        """The advertised rows."""
        return [APIS[key] for key in sorted((ApiKey.API_VERSIONS, *self._handlers))]

    def register(self, api_key: int, handler: RequestHandler) -> None:
        """Serve `api_key` with `handler` from now on. ValueError for a key without a row in APIS, or taken."""
        if api_key not in APIS or api_key == ApiKey.API_VERSIONS or api_key in self._handlers:
            raise ValueError(f"api cannot be registered: api_key={api_key}")
        self._handlers[api_key] = handler
        self._answer_versions = ApiVersionsHandler(self.served(), self._image)

    def register_unadvertised(self, api_key: int, handler: RequestHandler) -> None:
        """Serve an API that is not for clients, or that is not Kafka's, of which the handler checks versions."""
        if api_key in self._handlers or api_key in self._unadvertised:
            raise ValueError(f"api cannot be registered: api_key={api_key}")
        self._unadvertised[api_key] = handler

    async def warm_up(self) -> None:
        """Load the schemas of everything served, one at a time: each blocks the loop for some milliseconds, as
        would the first request that needs it."""
        for _ in loaded_schemas(self.served()):
            await asyncio.sleep(0)

    def handle(self, request: Request) -> Awaitable[Response]:
        """The handler's result: a coroutine or a Promise. CloseConnection for an unsupported API or version."""
        api_key, version = request.api_key, request.api_version
        if api_key == _API_VERSIONS:
            return self._answer_versions(request)
        handler = self._handlers.get(api_key)
        if handler is None:
            if (unadvertised := self._unadvertised.get(api_key)) is not None:
                if api_key in APIS and not APIS[api_key].serves(version):
                    raise CloseConnection("version not served")
                return unadvertised(request)
            raise CloseConnection("api not served")
        if not APIS[api_key].serves(version):
            raise CloseConnection("version not served")
        if version < FIRST_PRODUCE_VERSION and api_key == _PRODUCE:
            return _refuse_old_produce(request)
        return handler(request)


def loaded_schemas(apis: Iterable[Api]) -> Iterator[Schema]:
    """The schemas of their requests, each loaded when it is asked for."""
    for api in apis:
        for version in range(api.min_version, api.max_version + 1):
            if api.key != ApiKey.PRODUCE or version >= FIRST_PRODUCE_VERSION:
                yield schema(api.key, version)


async def _refuse_old_produce(request: Request) -> Response:
    """UNSUPPORTED_VERSION for every partition; with acks=0 the client can only notice a closed connection."""
    produce = decode_produce(request.body, request.api_version, request.connection.request_elements_max)
    if produce.acks == 0:
        raise CloseConnection("produce version not served")
    reply = refuse(produce, ErrorCode.unsupported_version)
    return Response(encode_produce_response(request.correlation_id, request.api_version, reply))
