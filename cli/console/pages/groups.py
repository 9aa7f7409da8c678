"""Pages of those who use the cluster: groups with their members, their lag; clients with their quotas.

Place: /groups, /group, /reset-offsets and /clients; changes.py commits what a preview showed, and sets quotas.
Invariant: a preview changes nothing. It shows at most MOVES_MAX partitions, and exactly these are committed.
Invariant of clients: rates need the agents' HTTP addresses, and the page says so. A cluster that does not let this
console see quotas still shows the clients.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from headrace.cli.client.groups import (
    ShareGroupView,
    committed_offsets,
    describe_share_group,
    list_groups,
    offsets_of,
    read_members,
    share_lags,
    share_progress,
)
from headrace.cli.client.offsets import (
    LATEST,
    OffsetMoves,
    ResetTo,
    TopicPartition,
    list_offsets,
    partitions_of,
    plan_reset,
)
from headrace.cli.client.quotas import CLIENT_ID, IP, USER, list_quotas
from headrace.cli.console.agent_metrics import OTHERS, heaviest_first, shown_pair
from headrace.cli.console.cluster_link import BoundedCluster
from headrace.cli.console.parts import ConsoleParts, PageOfRows, time_ms, whole_number
from headrace.cli.options import INT64_MAX
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, RetryableError

GROUPS_PER_PAGE = 50
PARTITIONS_PER_PAGE = 200
MEMBERS_MAX = 500
MOVES_MAX = 2_000
TARGETS = ("earliest", "latest", "datetime", "offset", "shift")


SHARE = "share"
"""Kafka's name of this type of group."""


class LagRow(NamedTuple):
    """Lag in one partition; None: unknown. `committed`: of a share group, its start offset. `member`, `client`: of the
    member that reads it; of a share group, how many do.
    """

    topic: str
    partition: int
    committed: int
    end: int | None
    lag: int | None
    member: str | None
    client: str | None


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/groups, /group and /reset-offsets"""

    @app.get("/groups")
    def groups(q: str = "", page: str = "") -> HTMLResponse:
        last = console.sampler.samples.last
        with console.link.opened() as cluster:
            found = [group for name, group in list_groups(cluster).items() if q.lower() in name.lower()]
            pages = PageOfRows.of(page, GROUPS_PER_PAGE, len(found))
            lags = share_lags(cluster, coordinators_of_shares(found[pages.rows]))
        rows = [
            {
                **group,
                "lag": last.lag(group["group"])
                if last and group["group"] in last.committed
                else lags.get(group["group"]),
                "topics": sorted({topic for topic, _ in last.committed.get(group["group"], ())}) if last else [],
            }
            for group in found[pages.rows]
        ]
        return console.pages.render("groups", rows=rows, q=q, pages=pages)

    @app.get("/group")
    def group(name: str, page: str = "") -> HTMLResponse:
        with console.link.opened() as cluster:
            state = list_groups(cluster).get(name, {})
            share = cluster.look_again(lambda: describe_share_group(cluster, name)) if is_share(state) else None
            members, rows, problem = read_group(cluster, name, share)
        pages = PageOfRows.of(page, PARTITIONS_PER_PAGE, len(rows))
        return console.pages.render(
            "group",
            name=name,
            state=state,
            share=share,
            members=members[:MEMBERS_MAX],
            member_count=len(members),
            rows=rows[pages.rows],
            lag=None if any(row.lag is None for row in rows) else sum(row.lag or 0 for row in rows),
            pages=pages,
            problem=problem,
        )

    @app.get("/reset-offsets")
    def reset(request: Request, group: str, topic: str = "", to: str = "", value: str = "") -> HTMLResponse:
        with console.link.opened() as cluster:
            committed, members, _ = offsets_of(cluster, group, must_exist=True)
            topics = sorted({name for name, _ in committed})
            moves = plan(cluster, committed, topic, to, value) if to else None
        browser = console.tokens.browser_of(request)
        page = console.pages.render(
            "reset_offsets",
            group=group,
            topic=topic,
            topics=topics,
            to=to,
            value=value,
            targets=TARGETS,
            committed=committed,
            members=len(members),
            moves=moves,
            moves_json=json.dumps([[*place, offset] for place, offset in moves.offsets.items()]) if moves else "",
            csrf_token=console.tokens.token(browser),
        )
        console.tokens.keep(request, page, browser)
        return page


def read_group(
    cluster: BoundedCluster, name: str, share: ShareGroupView | None
) -> tuple[list[dict[str, Any]], list[LagRow], str]:
    """Return members, rows by topic and partition, and why log ends are unknown, if they are. `share`: None of a group
    of another type.
    """
    if share is not None:
        return share.members, *share_rows(cluster, name, share)
    committed = cluster.look_again(lambda: committed_offsets(cluster, name))
    members = read_members(cluster, name, has_offsets=bool(committed))
    return members, *lag_rows(cluster, committed, members)


def coordinators_of_shares(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the coordinators of the share groups among these of list_groups."""
    return {group["group"]: group["coordinator"] for group in found if is_share(group)}


def is_share(state: Mapping[str, Any]) -> bool:
    """Return whether a group of list_groups is a share group."""
    return state.get("type") == SHARE


def share_rows(cluster: BoundedCluster, name: str, share: ShareGroupView) -> tuple[list[LagRow], str]:
    """Return the rows of a share group by topic and partition; and why ends are unknown, if they are."""
    progress = cluster.look_again(lambda: share_progress(cluster, name))
    ends, problem = _ends(cluster, progress)
    readers = Counter(text for member in share.members for text in member["assignment"])
    rows = []
    for place, each in sorted(progress.items()):
        members = readers[f"{place[0]}:{place[1]}"]
        rows.append(LagRow(*place, each.start_offset, ends.get(place), each.lag, None, str(members)))
    return rows, problem


def lag_rows(
    cluster: BoundedCluster, committed: dict[TopicPartition, int], members: list[dict[str, Any]]
) -> tuple[list[LagRow], str]:
    """Return the rows of lag by topic and partition; and why ends are unknown, if they are."""
    ends, problem = _ends(cluster, committed)
    readers = {text: member for member in members for text in member["assignment"]}
    rows = []
    for (topic, index), offset in sorted(committed.items()):
        end = ends.get((topic, index))
        reader = readers.get(f"{topic}:{index}", {})
        lag = None if end is None else max(end - offset, 0)
        rows.append(LagRow(topic, index, offset, end, lag, reader.get("member"), reader.get("client")))
    return rows, problem


def _ends(cluster: BoundedCluster, places: Collection[TopicPartition]) -> tuple[dict[TopicPartition, int], str]:
    """Return the log ends, and why some are unknown, if they are."""
    try:
        known = partitions_of(cluster, sorted({topic for topic, _ in places}))
        return list_offsets(cluster, {place: LATEST for place in places if place in known}), ""
    except (RetryableError, NotFoundError) as error:
        return {}, f"some log ends are unknown: {error}"


def plan(cluster: BoundedCluster, committed: dict[TopicPartition, int], topic: str, to: str, value: str) -> OffsetMoves:
    """The new offsets of the topic's partitions, or of all committed ones. InvalidError for a wrong target."""
    places = sorted(partitions_of(cluster, [topic])) if topic else sorted(committed)
    if to == "shift":
        places = [place for place in places if place in committed]
    if not places:
        raise InvalidError("the group has no offsets: choose a topic")
    if len(places) > MOVES_MAX:
        raise InvalidError(f"more than {MOVES_MAX} partitions: choose a topic, or use headrace groups reset-offsets")
    return plan_reset(cluster, reset_to(to, value), places, committed)


def reset_to(to: str, value: str) -> ResetTo:
    """InvalidError if the value does not fit the target."""
    if to in ("earliest", "latest"):
        return ResetTo(latest=to == "latest")
    if to == "datetime":
        return ResetTo(time_ms=time_ms(value, "value"))
    low = 0 if to == "offset" else -INT64_MAX
    number = whole_number(value, "value", low)
    if to not in TARGETS or number is None:
        raise InvalidError(f"value: {to} needs a number" if to in TARGETS else f"to: not one of {', '.join(TARGETS)}")
    return ResetTo(offset=number) if to == "offset" else ResetTo(shift=number)


CLIENTS_PER_PAGE = 50
QUOTAS_MAX = 200
DEFAULT = "<default>"


def add_clients(app: FastAPI, console: ConsoleParts) -> None:
    """/clients"""

    @app.get("/clients")
    def clients(q: str = "", page: str = "") -> HTMLResponse:
        found = [
            {"user": user, "client_id": client_id, "use": use, "is_others": pair == OTHERS}
            for pair, use in heaviest_first(console.sampler.samples.clients)
            for user, client_id in (shown_pair(pair),)
            if q.lower() in user.lower() or q.lower() in client_id.lower()
        ]
        pages = PageOfRows.of(page, CLIENTS_PER_PAGE, len(found))
        quotas, problem = _quotas(console)
        return console.pages.render(
            "clients",
            rows=found[pages.rows],
            q=q,
            pages=pages,
            quotas=quotas[:QUOTAS_MAX],
            quota_count=len(quotas),
            problem=problem,
            has_agents=console.sampler.has_agents,
            problems=console.sampler.problems,
        )


def _quotas(console: ConsoleParts) -> tuple[list[dict[str, object]], str]:
    """One row per limit, and why there are none if the cluster refuses to say."""
    try:
        with console.link.opened() as cluster:
            found = list_quotas(cluster)
    except HeadraceError as error:
        return [], str(error)
    rows: list[dict[str, object]] = []
    for entity, limits in found.items():
        names = {kind: DEFAULT if name is None else name for kind, name in entity}
        for key, value in sorted(limits.items()):
            whom = {"user": names.get(USER), "client_id": names.get(CLIENT_ID), "ip": names.get(IP)}
            rows.append(whom | {"key": key, "value": value})
    return rows, ""
