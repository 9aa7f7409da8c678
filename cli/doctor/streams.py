"""Judges streams groups: whether the topics that their applications need are there, and whether one was asked to stop.

Place: one area of `headrace doctor`, with an alarm on the console; reads what coordinators stored, and the newest
topics.
Invariant: reads only; the judge decides on facts alone. A group that begins lacks its internal topics until they are
created, which is no fault: groups that lack some are looked at once more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.agent.groups.streams.configured_topology import InvalidTopologyError, StatusCode
from headrace.agent.groups.streams.membership import SavedStreamsGroup, configured_among, saved_group
from headrace.cli.doctor.findings import Area, Finding
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import load_image
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

AREA = Area("streams")
LOOK_AGAIN_SECONDS = 5.0
"""Internal topics are created with the first heartbeat of a member, in far less."""
_PAGE = 20
"""Groups that are read at once: each may have a megabyte."""

TO_DO: Mapping[StatusCode | None, str] = {
    StatusCode.MISSING_SOURCE_TOPICS: "create the topics, or correct the application",
    StatusCode.INCORRECTLY_PARTITIONED_TOPICS: (
        "stop the application, give its topics equal counts, or reset it and delete its internal topics"
        " (docs/operate/GROUPS.md)"
    ),
    StatusCode.MISSING_INTERNAL_TOPICS: (
        "the application's log says why they were not created: its user needs CREATE on the cluster or on each of them"
    ),
    None: "correct the application, and give it another application.id or delete the group",
}
"""The advice by what is wrong with the topics; None: the topology fits no topics."""


class Trouble(NamedTuple):
    """Why none of a group's tasks may run. `code` None: no topics would fit its topology."""

    code: StatusCode | None
    detail: str


class StreamsGroupFound(NamedTuple):
    """A group with members, as it was stored last, with the newest topics. `problem`: why that cannot be read."""

    group_id: str
    members: int
    trouble: Trouble | None = None
    shut_down_by: str | None = None
    problem: str | None = None


async def examine(metastore: Metastore, image: MetadataImage, clock: Clock) -> list[Finding]:
    """Every finding; none without streams groups that have members."""
    found = [each async for each in _read(metastore, image)]
    if any(each.trouble is not None and each.trouble.code is StatusCode.MISSING_INTERNAL_TOPICS for each in found):
        await clock.sleep(LOOK_AGAIN_SECONDS)
        newest = await load_image(metastore.cluster)
        found = [each async for each in _read(metastore, newest)]
    return list(judge(found))


async def _read(metastore: Metastore, image: MetadataImage) -> AsyncIterator[StreamsGroupFound]:
    after = ""
    while page := await metastore.reports.stored_groups(GroupKind.STREAMS, after, _PAGE):
        for stored in page:
            after = stored.group_id
            try:
                yield _found(after, saved_group(stored.data), image)
            except HeadraceError as error:
                yield StreamsGroupFound(after, 0, problem=str(error))


def _found(group_id: str, saved: SavedStreamsGroup, image: MetadataImage) -> StreamsGroupFound:
    trouble = None
    if saved.topology is not None:
        try:
            status = configured_among(saved.topology, image.topics_by_name).status
            trouble = None if status is None else Trouble(*status)
        except InvalidTopologyError as error:
            trouble = Trouble(None, str(error))
    return StreamsGroupFound(group_id, len(saved.members), trouble, saved.shut_down_by)


def judge(found: Sequence[StreamsGroupFound]) -> Iterator[Finding]:
    """One finding for each kind of trouble, with the first group that has it."""
    troubled: dict[StatusCode | None, list[tuple[str, str]]] = {}
    for each in found:
        if each.trouble is not None:
            troubled.setdefault(each.trouble.code, []).append((each.group_id, each.trouble.detail))
    for code, groups in troubled.items():
        first, detail = groups[0]
        what = f"{len(groups)} groups run no tasks, first {shown(first)}: {shown(detail)}"
        yield AREA.warn("topics", what, TO_DO[code])
    stopping = [each for each in found if each.shut_down_by is not None]
    if stopping:
        first_of = stopping[0]
        what = (
            f"{len(stopping)} applications were asked to stop by one of their threads, and have threads that did not,"
            f" first {shown(first_of.group_id)}: {first_of.members} threads"
        )
        yield AREA.warn("stop", what, "the application's log has its error; end the processes that are left")
    unread = [each for each in found if each.problem is not None]
    if unread:
        why = f"{len(unread)} groups were not read, first {shown(unread[0].group_id)}: {unread[0].problem}"
        yield AREA.unknown("groups", why, "run the doctor of the agents' release")
    if found and not troubled and not stopping and not unread:
        yield AREA.ok("groups", f"{len(found)} groups with threads have all their topics")
