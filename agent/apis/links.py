"""The API about links: LINKS, which only Headrace has.

Place: a part of all_apis.py. Any agent answers.
Invariant: what a link changes needs ALTER on the cluster, what is only read needs DESCRIBE. Topics are deleted with a
link by those who may delete them; a link's own topics are created with the rights of its creator
(agent/cluster/controller/link_steps.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

from headrace.agent.access.audit import Change
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, GatedRequest, Rule
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.topics.links import LinkRequests
from headrace.protocol.answers import message_of
from headrace.protocol.link_requests import (
    LINKS_KEY,
    READS,
    LinkOp,
    LinkRequest,
    LinkResponse,
    decode_link_request,
    encode_link_response,
)
from headrace.protocol.request import Request, Response

_CLUSTER, _TOPIC = AclResource.CLUSTER, AclResource.TOPIC


def _links(ask: GatedRequest) -> Awaitable[Response]:
    asked = decode_link_request(ask.request.body)
    operation = AclOperation.DESCRIBE if asked.op in READS else AclOperation.ALTER
    if not ask.allows(operation, _CLUSTER):
        return _refuse(ask, _CLUSTER)
    if asked.op is LinkOp.DROP and asked.delete_topics:
        return ask.after_catching_up(_drop)
    return ask.pass_on()


def _drop(ask: GatedRequest) -> Awaitable[Response]:
    """DELETE on the cluster, or on each topic that would be deleted."""
    if ask.access.allows(AclOperation.DELETE, _CLUSTER):
        return ask.pass_on()
    may_delete = all(ask.allows(AclOperation.DELETE, _TOPIC, name) for name in _deleted(ask))
    return ask.pass_on() if may_delete else _refuse(ask, _TOPIC)


def _deleted(ask: GatedRequest) -> Iterator[str]:
    asked = decode_link_request(ask.request.body)
    wanted = set(asked.topics)
    for name in ask.image.topics_by_name:
        if ask.image.link_of(name) == asked.link and (not wanted or name in wanted):
            yield name


def _refuse(ask: GatedRequest, resource: AclResource) -> Awaitable[Response]:
    code = FAILED[resource]
    answer = LinkResponse(error_code=int(code), message=message_of(code))
    return ask.answer_raw(encode_link_response(ask.request.correlation_id, answer))


def changed_link(request: Request, response: Response) -> Iterator[Change]:
    """The line of a change, and one for each topic that is promoted or deleted; names of configs only, no values."""
    asked = decode_link_request(request.body)
    if asked.op in READS or asked.validate_only:
        return
    answer: LinkResponse = response.entity
    yield Change(f"LINK:{asked.link}", answer.error_code, _detail(asked))
    if asked.op is LinkOp.PROMOTE or asked.delete_topics:
        for topic in answer.topics:
            yield Change(f"TOPIC:{topic}", answer.error_code, _detail(asked))


def _detail(asked: LinkRequest) -> str:
    flags = [name for name in ("force", "fence", "delete_topics") if getattr(asked, name)]
    configs = [f"configs {','.join(sorted(asked.configs))}"] if asked.configs else []
    return " ".join([asked.op.value, *flags, *configs])


LINK_ROWS: dict[int, ApiRow[BrokerParts]] = {
    LINKS_KEY: ApiRow(
        lambda of: LinkRequests(of.change, of.metastore, of.sealing, of.fetch.database_now_ms),
        Rule(
            _links,
            (
                Check(AclOperation.ALTER, _CLUSTER, FAILED[_CLUSTER], "all but list and show"),
                Check(AclOperation.DESCRIBE, _CLUSTER, FAILED[_CLUSTER], "list and show"),
                Check(
                    AclOperation.DELETE, _TOPIC, FAILED[_TOPIC], "each topic deleted with its link; or on the cluster"
                ),
            ),
        ),
        changed_link,
        is_advertised=False,
    ),
}
