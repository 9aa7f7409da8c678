"""The request LINKS: creates, changes, promotes and drops links, and says how far they are.

Place: an agent answers it for `headrace link` and `headrace cluster apply`. A link is configs in the metadata log;
workers copy (compactor/links), and the active controller creates and promotes topics
(agent/cluster/controller/link_steps.py).
Invariant: compare and append, as all changes of the metadata log. A link that is dropped with its topics is paused
first: none of them is created again while they are deleted. A repeated request is safe.
A deleted copy cannot be restored: its source has the records.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import LOG_KEPT_CHANGING, PATIENCE_SECONDS, Appends, LogChange, Verdict
from headrace.agent.topics.link_report import shown_groups, shown_link
from headrace.agent.topics.link_rules import (
    Copies,
    copies,
    fencing,
    judge,
    removed,
    set_configs,
    why_not_dropped,
    why_not_promoted,
)
from headrace.config.link_configs import PAUSED, STATE
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.link_secrets import sealed, why_not_sealed
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.sealing import Sealing
from headrace.protocol.link_requests import (
    LINKS_VERSION,
    READS,
    LinkOp,
    LinkRequest,
    LinkResponse,
    ShownLink,
    decode_link_request,
    encode_link_response,
)
from headrace.protocol.request import ANONYMOUS, CloseConnection, Request, Response
from headrace.storage.errors import HeadraceError, OutcomeUnknownError

T = TypeVar("T")


class LinkRequests:
    """Answer LINKS."""

    def __init__(self, change: LogChange, metastore: Metastore, sealing: Sealing, now_ms: Callable[[], int]) -> None:
        """`now_ms`: the database's clock."""
        self._change, self._metastore, self._sealing, self._now_ms = change, metastore, sealing, now_ms

    async def __call__(self, request: Request) -> Response:
        if request.api_version != LINKS_VERSION:
            raise CloseConnection("version not served")
        asked = decode_link_request(request.body)
        deadline = request.received_at + PATIENCE_SECONDS
        try:
            answer = await self._answer(asked, request.connection.principal or ANONYMOUS, deadline)
        except HeadraceError as error:
            answer = _refused(Verdict.failed(error))
        return Response(entity=answer, write=lambda entity: [encode_link_response(request.correlation_id, entity)])

    async def _answer(self, asked: LinkRequest, principal: str, deadline: float) -> LinkResponse:
        if asked.op in READS:
            return await self._shown(asked)
        if asked.op is LinkOp.PROMOTE:
            return await self._promote(asked, deadline)
        if asked.op is LinkOp.DROP:
            return await self._drop(asked, deadline)
        return await self._set(asked, principal, deadline)

    async def _set(self, asked: LinkRequest, principal: str, deadline: float) -> LinkResponse:
        given = {name: value for name, value in asked.configs.items() if value is not None}
        if reason := why_not_sealed(self._sealing, given):
            return _refused(Verdict(ErrorCode.invalid_config, reason))
        values: dict[str, str | None] = dict.fromkeys(asked.configs)
        values |= sealed(self._sealing, asked.link, given)
        if asked.op is LinkOp.CREATE and not asked.validate_only:
            await self._forget(asked.link)

        def records(image: MetadataImage) -> Sequence[ConfigRecord] | Verdict:
            return judge(image, asked, values, principal)

        return _refused(await self._carry_out(records, deadline, validate_only=asked.validate_only))

    async def _forget(self, link: str) -> None:
        """Forget what a link of this name found before: its drop may have been interrupted."""
        image = await self._change.cluster.catch_up()
        if link not in image.links:
            await self._metastore.links.forget_link(link)

    async def _promote(self, asked: LinkRequest, deadline: float) -> LinkResponse:
        image = await self._change.cluster.catch_up()
        found = copies(image, asked.link, asked.topics)
        if isinstance(found, Verdict):
            return _refused(found)
        if refusal := why_not_promoted(image, asked, found):
            return _refused(refusal)
        if not asked.validate_only:
            verdict = await self._carry_out(lambda now: fencing(now, asked), deadline)
            if verdict.code is not ErrorCode.none:
                return _refused(verdict)
            await self._metastore.links.ask_promotion(found.ids, force=asked.force)
        shown = await self._report(image, [asked.link], has_topics=True)
        return LinkResponse(links=tuple(shown), topics=found.names)

    async def _drop(self, asked: LinkRequest, deadline: float) -> LinkResponse:
        image = await self._change.cluster.catch_up()
        found = copies(image, asked.link, asked.topics)
        if isinstance(found, Verdict):
            return _refused(found)
        refusal = why_not_dropped(asked, found)
        if refusal is not None or asked.validate_only:
            return _refused(refusal or Verdict(), found.names)
        if asked.topics:
            return _refused(await self._delete(asked, deadline), found.names)
        verdict = await self._carry_out(lambda now: set_configs(now, asked.link, {STATE: PAUSED}), deadline)
        if verdict.code is ErrorCode.none and found.topics:
            verdict = await self._delete(asked, deadline)
        if verdict.code is ErrorCode.none:
            verdict = await self._carry_out(lambda now: _ended(now, asked), deadline)
        if verdict.code is ErrorCode.none:
            await self._metastore.links.forget_link(asked.link)
        return _refused(verdict, found.names)

    async def _delete(self, asked: LinkRequest, deadline: float) -> Verdict:
        """Delete the copies, of the request's names or all."""
        cluster = self._change.cluster
        appends = Appends(cluster, self._change.clock, deadline)
        while True:
            image = await cluster.catch_up()
            left = [topic for topic in asked.topics if image.link_of(topic) == asked.link]
            found = copies(image, asked.link, left)
            if isinstance(found, Verdict):
                return found
            if not found.topics or (asked.topics and not left):
                return Verdict()
            if not appends.may_go_on:
                return Verdict(ErrorCode.request_timed_out, LOG_KEPT_CHANGING)
            appends.begin()
            with contextlib.suppress(OutcomeUnknownError):  # the next image shows which topics are gone
                if not await self._metastore.topics.delete_topics(image.offset, found.ids):
                    await appends.came_late()

    async def _carry_out(
        self,
        judged: Callable[[MetadataImage], Sequence[ConfigRecord] | Verdict],
        deadline: float,
        *,
        validate_only: bool = False,
    ) -> Verdict:
        refusals: list[Verdict] = []

        def records(image: MetadataImage) -> Sequence[ConfigRecord]:
            found = judged(image)
            refusals[:] = [found] if isinstance(found, Verdict) else []
            return () if isinstance(found, Verdict) else found

        if validate_only:
            records(await self._change.cluster.catch_up())
            return refusals[0] if refusals else Verdict()
        done = await self._change.append(records, deadline)
        return refusals[0] if refusals else done

    async def _shown(self, asked: LinkRequest) -> LinkResponse:
        image = await self._change.cluster.catch_up()
        if asked.op is not LinkOp.LIST and asked.link not in image.links:
            return _refused(Verdict(ErrorCode.resource_not_found, f"link '{asked.link}' does not exist"))
        names = sorted(image.links) if asked.op is LinkOp.LIST else [asked.link]
        links = await self._report(image, names, has_topics=asked.op is LinkOp.SHOW)
        if asked.op is LinkOp.GROUPS:
            groups = [each for each in await self._metastore.linked_groups.linked_groups() if each.link == asked.link]
            shown = shown_groups(groups, self._now_ms())
            links = [msgspec.structs.replace(link, groups=shown) for link in links]
        return LinkResponse(links=tuple(links))

    async def _report(self, image: MetadataImage, names: Sequence[str], *, has_topics: bool) -> list[ShownLink]:
        if not names:
            return []
        api, configs = self._metastore.links, image.links
        sources = {source.link: source for source in await api.link_sources()}
        progress = _by_link(await api.linked_progress(), lambda each: each.link)
        found = _by_link(await api.found_topics(), lambda each: each.link)
        now_ms = self._now_ms()
        return [
            shown_link(
                name, configs[name], sources.get(name), progress[name], found[name], now_ms, has_topics=has_topics
            )
            for name in names
            if name in configs
        ]


def _ended(image: MetadataImage, asked: LinkRequest) -> Sequence[ConfigRecord] | Verdict:
    """The records that end the link, if no topic was linked meanwhile."""
    found = copies(image, asked.link)
    if isinstance(found, Copies) and found.topics:
        return Verdict(ErrorCode.policy_violation, f"link '{asked.link}' got topics meanwhile: drop it again")
    return removed(image, asked.link)


def _by_link(rows: Iterable[T], link_of: Callable[[T], str]) -> defaultdict[str, list[T]]:
    found = defaultdict[str, list[T]](list)
    for row in rows:
        found[link_of(row)].append(row)
    return found


def _refused(verdict: Verdict, topics: Sequence[str] = ()) -> LinkResponse:
    return LinkResponse(error_code=int(verdict.code), message=verdict.message, topics=tuple(topics))
