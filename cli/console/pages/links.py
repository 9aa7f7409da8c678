"""Links: which clusters are copied from, how far the copies are behind, and what is wrong with them.

Place: /links. It asks an agent for what `headrace link list` and `show` print; headrace link changes links.
Invariant: reads only. A cluster without the feature, as Apache Kafka's, is said to have no links. A page shows at most
TOPICS_MAX topics and groups of a link: those with problems and the largest lag first.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.console.cluster_reads import read_cluster
from headrace.cli.console.parts import ConsoleParts
from headrace.config.link_configs import BOOTSTRAP_SERVERS, GROUPS, STATE
from headrace.metastore.api.agents import CLUSTER_LINKS
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.link_requests import LinkOp, LinkRequest, ShownGroup, ShownLink, ShownTopic

TOPICS_MAX = 200
LINKS_SHOWN_MAX = 20
"""Links of which the topics are asked for."""
PERCENT = 100.0


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/links"""

    @app.get("/links")
    def links() -> HTMLResponse:
        found: list[ShownLink] = []
        with console.link.opened() as cluster:
            features = {feature.name: feature.level for feature in read_cluster(cluster).features}
            has_links = bool(features.get(CLUSTER_LINKS))
            if has_links:
                found = list(cluster.links(LinkRequest(op=LinkOp.LIST)).links)
            shown = [_shown(cluster, LinkOp.SHOW, each) for each in found[:LINKS_SHOWN_MAX]]
            with_groups = [link for link in shown if link.configs.get(GROUPS)]
            groups = {link.name: _shown(cluster, LinkOp.GROUPS, link) for link in with_groups}
        return console.pages.render(
            "links",
            has_links=has_links,
            found=found,
            shown=[(link, link.topics[:TOPICS_MAX], groups.get(link.name)) for link in shown],
            groups_max=TOPICS_MAX,
            place_of=place_of,
            source_of=lambda link: link.configs.get(BOOTSTRAP_SERVERS) or "",
            state_of=state_of,
            percent_of=percent_of,
        )


def _shown(cluster: KafkaCluster, op: LinkOp, link: ShownLink) -> ShownLink:
    return cluster.links(LinkRequest(op=op, link=link.name)).links[0]


def place_of(group: ShownGroup) -> str:
    """Say where the group is, as a state of the page: a group that has members there is to be moved yet."""
    if group.is_here:
        return "here"
    return "at the source" if group.has_members_there else "stopped at the source"


def state_of(link: ShownLink) -> str:
    """One word."""
    if link.configs.get(STATE) == "paused":
        return "paused"
    if link.problem:
        return "blocked"
    return "following" if link.cluster_id else "unknown"


def percent_of(copied: ShownLink | ShownTopic) -> str:
    """How much of what the source has is here, from 0.0 to 100.0."""
    wanted = copied.records + copied.lag
    return f"{PERCENT * copied.records / wanted if copied.lag else PERCENT:.1f}"
