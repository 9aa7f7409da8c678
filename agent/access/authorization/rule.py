"""The form of a rule, and the two rules that most APIs have: one question for all, or one for each element."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.protocol.request import Response

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
