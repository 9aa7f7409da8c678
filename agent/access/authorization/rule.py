"""Rules that authorize requests before their handlers.

Place: `gate` puts the rule of an API around the handlers that agent/apis/api_row.py registers, and makes a
GatedRequest for each request: what a rule may ask, and how it answers. Most APIs have one of the rules here: one
question for all, or one for each element.
Invariant: an API without a rule has no row, so it is not registered, also while ACLs are not enforced. If they are
not, a handler is registered as it is, and costs nothing more. Requests of other agents are not wrapped: their
handlers check the cluster's secret. A request that another agent forwards has its client's principal and address,
and is judged here again, by this agent's image.
A rule hands on to the handler what is allowed, and only that. It calls the handler before it returns, so
requests start in the order of their arrival, except a long one that only reads or that is served alone on its
connection: it is judged in slices (agent/limits/work_slices.py), as answers are changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.limits.work_slices import TOPIC_UNITS, WorkSlices
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.answers import blank, element_type, message_of, refused_element
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import ALONE, WIDE
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.protocol.typed import Schema, decode, entity_of, reply, schema

AT_ONCE_MAX = 64
"""Elements of a request that are judged at once."""
DENIED_UNITS = 100
"""What a denial costs, with its lines in the log and the audit log."""
_SLICED = WIDE | ALONE | {ApiKey.FIND_COORDINATOR}
"""APIs of which a long request may start after the next one of its connection."""
Change = Callable[[Any], Any | Awaitable[Any]]
"""Makes another answer of a handler's, at once or in slices."""


class GatedRequest:
    """A request, the handler behind the rule, and what the client may do."""

    __slots__ = ("_authorizer", "_handler", "access", "is_caught_up", "request")

    def __init__(self, authorizer: Authorizer, request: Request, handler: RequestHandler, access: Access) -> None:
        self._authorizer, self._handler = authorizer, handler
        self.request = request
        self.access = access
        self.is_caught_up = False
        """The image was brought to the end of the metadata log for this request."""

    @property
    def entity(self) -> Any:
        """The decoded request. InvalidError if it is malformed."""
        return decode(self.request)[1]

    @property
    def schema(self) -> Schema:
        """The schema of the request's version."""
        return schema(self.request.api_key, self.request.api_version)

    @property
    def image(self) -> MetadataImage:
        """The newest image."""
        return self._authorizer.image()

    # -- questions

    def allows(self, operation: AclOperation, resource_type: AclResource, name: str = CLUSTER_NAME) -> bool:
        """Return whether the client may do this; a denial is reported."""
        if self.access.allows(operation, resource_type, name):
            return True
        self._authorizer.denied(self.request, operation, resource_type, name)
        return False

    async def seen(
        self,
        resource_type: AclResource,
        elements: Iterable[Any],
        name_of: Callable[[Any], str | None],
        slices: WorkSlices,
    ) -> tuple[Any, ...]:
        """Return the elements that the client may describe; the others are left out without a report."""
        found = []
        for element in elements:
            name = name_of(element)
            if name is not None and self.access.allows(AclOperation.DESCRIBE, resource_type, name):
                found.append(element)
            await slices.did(TOPIC_UNITS)
        return tuple(found)

    # -- ways on

    def pass_on(self) -> Awaitable[Response]:
        """Let the handler serve the request as it is."""
        return self._handler(self.request)

    def pass_on_changed(self, change: Change, **values: Any) -> Awaitable[Response]:
        """Let the handler serve the request with other values of some fields, and change its answer."""
        request = self.request
        if values:
            entity = dataclasses.replace(self.entity, **values)
            request = dataclasses.replace(request, body=self.schema.encode_request(entity), entity=entity)
        return self._changed(self._handler(request), change)

    def refuse(self, code: ErrorCode, **values: Any) -> Awaitable[Response]:
        """The whole request, by the error code of the response."""
        if any(field.name == "error_message" for field in dataclasses.fields(self.schema.response_type)):
            values["error_message"] = message_of(code)
        return self.answer(error_code=code, **values)

    def answer(self, **values: Any) -> Awaitable[Response]:
        """Answer without the handler: these values, everything else empty."""
        empty = blank(self.request.api_key, self.request.api_version)
        return _ready(reply(self.request, dataclasses.replace(empty, **values)))

    def answer_raw(self, *buffers: bytes | memoryview) -> Awaitable[Response]:
        """Answer without the handler: a response that is not Kafka's."""
        return _ready(Response(list(buffers)))

    def refused(self, answered: str, element: Any, code: ErrorCode) -> Any:
        """The answer to one element of the request, in the array `answered`."""
        return refused_element(self.element_type(answered), element, code)

    def element_type(self, *path: str) -> type:
        """Return the element type of the response's array at this path."""
        found: type = self.schema.response_type
        for name in path:
            found = element_type(found, name)
        return found

    def after_catching_up(self, serve: Callable[[GatedRequest], Awaitable[Response]]) -> Awaitable[Response]:
        """Judge the request again with an image of the end of the metadata log, or with the present one if that cannot
        be read."""
        return self._caught_up(serve)

    async def _caught_up(self, serve: Callable[[GatedRequest], Awaitable[Response]]) -> Response:
        await self._authorizer.catch_up()
        self.is_caught_up = True
        return await serve(self)

    async def _changed(self, pending: Awaitable[Response], change: Change) -> Response:
        response = await pending
        entity = entity_of(self.request, response)
        changed = None if entity is None else change(entity)
        if isawaitable(changed):
            changed = await changed
        if changed is entity:
            return response
        answer = reply(self.request, changed)
        answer.reserved_bytes, answer.throttle_seconds = response.reserved_bytes, response.throttle_seconds
        return answer


def _same(entity: Any) -> Any:
    return entity


def split(
    ask: GatedRequest,
    asked: str,
    answered: str,
    is_allowed: Callable[[Any], bool],
    refused: Callable[[Any], Any],
    change: Change = _same,
) -> Awaitable[Response]:
    """Hand on the allowed elements of the array `asked`, and answer the others in `answered` by `refused`.

    `change` is applied to the handler's answer.
    """
    elements = getattr(ask.entity, asked) or ()
    if len(elements) > AT_ONCE_MAX and ask.request.api_key in _SLICED:
        return _split_in_slices(ask, asked, answered, is_allowed, refused, change)
    verdicts = [is_allowed(element) for element in elements]
    denied = [refused(element) for element, good in zip(elements, verdicts, strict=True) if not good]
    allowed = [element for element, good in zip(elements, verdicts, strict=True) if good]
    return _handed_on(ask, asked, answered, allowed, denied, change)


async def _split_in_slices(
    ask: GatedRequest,
    asked: str,
    answered: str,
    is_allowed: Callable[[Any], bool],
    refused: Callable[[Any], Any],
    change: Change,
) -> Response:
    slices, allowed, denied = WorkSlices(), [], []
    for element in getattr(ask.entity, asked):
        is_good = is_allowed(element)
        if is_good:
            allowed.append(element)
        else:
            denied.append(refused(element))
        await slices.did(TOPIC_UNITS if is_good else DENIED_UNITS)
    return await _handed_on(ask, asked, answered, allowed, denied, change)


def _handed_on(
    ask: GatedRequest, asked: str, answered: str, allowed: list[Any], denied: list[Any], change: Change
) -> Awaitable[Response]:
    if not denied:
        return ask.pass_on() if change is _same else ask.pass_on_changed(change)
    if not allowed:
        return ask.answer(**{answered: tuple(denied)})

    async def joined(entity: Any) -> Any:
        changed = change(entity)
        if isawaitable(changed):
            changed = await changed
        return dataclasses.replace(changed, **{answered: (*getattr(changed, answered), *denied)})

    return ask.pass_on_changed(joined, **{asked: tuple(allowed)})


async def _ready(response: Response) -> Response:
    return response


Serve = Callable[[GatedRequest], Awaitable[Response]]
"""Judges a request, and hands on what is allowed."""


class Check(NamedTuple):
    """One question of a rule, as the documentation shows it. `code` None: what is denied is left out of the answer."""

    operation: AclOperation
    resource_type: AclResource
    code: ErrorCode | None
    of: str = ""
    """The path of the elements that it is asked for, if not the whole request."""


class Rule(NamedTuple):
    """Rule of one API. `serve` None: its handler asks by itself, or nothing is asked."""

    serve: Serve | None
    checks: tuple[Check, ...]
    note: str = ""


FAILED = {
    AclResource.TOPIC: ErrorCode.topic_authorization_failed,
    AclResource.GROUP: ErrorCode.group_authorization_failed,
    AclResource.CLUSTER: ErrorCode.cluster_authorization_failed,
    AclResource.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    AclResource.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    AclResource.USER: ErrorCode.delegation_token_authorization_failed,
}
"""Kafka's error for a resource of the type."""


def whole(
    operation: AclOperation,
    resource_type: AclResource,
    name_of: Callable[[Any], str] | None = None,
    refuse: Callable[[GatedRequest, ErrorCode], Awaitable[Response]] = GatedRequest.refuse,
) -> Rule:
    """The request needs one operation on one resource: the cluster, or the one that `name_of` finds in it."""
    code = FAILED[resource_type]

    def serve(ask: GatedRequest) -> Awaitable[Response]:
        name = CLUSTER_NAME if name_of is None else name_of(ask.entity)
        return ask.pass_on() if ask.allows(operation, resource_type, name) else refuse(ask, code)

    return Rule(serve, (Check(operation, resource_type, code),))


def mirrored(asked: str, answered: str) -> Callable[[GatedRequest, ErrorCode], Awaitable[Response]]:
    """Refuses each element of a request, for responses without an error code for the whole request."""

    def refuse(ask: GatedRequest, code: ErrorCode) -> Awaitable[Response]:
        elements = getattr(ask.entity, asked) or ()
        return ask.answer(**{answered: tuple(ask.refused(answered, element, code) for element in elements)})

    return refuse


def each(
    asked: str,
    answered: str,
    operation: AclOperation,
    resource_type: AclResource,
    name_of: Callable[[Any], str],
) -> Rule:
    """Each element of the array `asked` needs the operation on its resource."""
    code = FAILED[resource_type]

    def serve(ask: GatedRequest) -> Awaitable[Response]:
        return split(
            ask,
            asked,
            answered,
            lambda element: ask.allows(operation, resource_type, name_of(element)),
            lambda element: ask.refused(answered, element, code),
        )

    return Rule(serve, (Check(operation, resource_type, code, f"each of {asked}"),))


def by_name(element: Any) -> str:
    """Return the name of an element with a field `name`."""
    return str(element.name)


def itself(element: Any) -> str:
    """Return the name of an element that is a name itself."""
    return str(element)


def group_of(entity: Any) -> str:
    """Return the group of a request about one group."""
    return str(entity.group_id)


def gate(authorizer: Authorizer, rule: Rule, handler: RequestHandler) -> RequestHandler:
    """Return the handler, behind the rule of its API."""
    serve = rule.serve
    if serve is None or not authorizer.is_on:
        return handler

    def gated(request: Request) -> Awaitable[Response]:
        access = authorizer.access(request.connection)
        if access.is_full:
            return handler(request)
        return serve(GatedRequest(authorizer, request, handler, access))

    return gated
