"""Topics: the list with throughput, one topic with its partitions, readers, configs, Iceberg table.

Place: /topics, /topic, /configs, /tables and /table; record counts come from offsets, rates and lags from the
samples. Tables need metastore, bucket and catalog.
Invariant: a page asks for the offsets of at most PARTITIONS_MAX partitions. Offsets that a leader does not give in
time are dashes; the rest is shown.
Invariant of configs: a secret is never shown: the cluster does not send it.
Invariant of tables: reads only. If a setting or pyiceberg is missing, the page says which.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.client.offsets import EARLIEST, LATEST, READ_COMMITTED, TopicPartition, list_offsets
from headrace.cli.configs import BROKER, GROUP, TOPIC, describe_configs, shown
from headrace.cli.console.cluster_link import BoundedCluster
from headrace.cli.console.parts import ConsoleParts, PageOfRows
from headrace.cli.console.samples import Samples, TopicRate
from headrace.cli.record_json import plain
from headrace.config.listeners import TABLES
from headrace.storage.errors import InvalidError, RetryableError

TOPICS_PER_PAGE = 50
PARTITIONS_PER_PAGE = 200
PARTITIONS_MAX = 5_000


class Offsets(NamedTuple):
    """Offsets of some partitions; empty where a leader did not answer."""

    earliest: dict[TopicPartition, int]
    stable: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]
    problem: str = ""

    def records(self, places: list[TopicPartition]) -> int | None:
        """Return the records between log start and high watermark; None if that is unknown for one of them."""
        if any(place not in self.latest or place not in self.earliest for place in places):
            return None
        return sum(self.latest[place] - self.earliest[place] for place in places)


class TopicRow(NamedTuple):
    name: str
    partitions: int
    records: int | None
    rate: TopicRate | None
    lag: int | None
    is_internal: bool


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/topics and /topic"""

    @app.get("/topics")
    def topics(q: str = "", page: str = "") -> HTMLResponse:
        samples = console.sampler.samples
        with console.link.opened() as cluster:
            found = [topic for topic in cluster.metadata() if q.lower() in str(topic.name).lower()]
            pages = PageOfRows.of(page, TOPICS_PER_PAGE, len(found))
            listed = found[pages.rows]
            offsets = read_offsets(cluster, [place for topic in listed for place in places_of(topic)])
        rows = [
            TopicRow(
                str(topic.name),
                len(topic.partitions),
                offsets.records(places_of(topic)),
                samples.rate(str(topic.name)),
                topic_lag(samples, str(topic.name)),
                bool(topic.is_internal),
            )
            for topic in listed
        ]
        return console.pages.render("topics", rows=rows, q=q, pages=pages, problem=offsets.problem)

    @app.get("/topic")
    def topic(name: str, page: str = "") -> HTMLResponse:
        samples = console.sampler.samples
        with console.link.opened() as cluster:
            (found,) = cluster.metadata([name])
            places = places_of(found)
            pages = PageOfRows.of(page, PARTITIONS_PER_PAGE, len(places))
            offsets = read_offsets(cluster, places[pages.rows])
            configs = shown(describe_configs(cluster, (TOPIC, name)), TOPIC)
        partitions = {int(partition.partition_index): partition for partition in found.partitions}
        return console.pages.render(
            "topic",
            name=name,
            topic=found,
            topic_id=plain(getattr(found, "topic_id", None)),
            partitions=[partitions[index] for _, index in places[pages.rows]],
            pages=pages,
            offsets=offsets,
            rate=samples.rate(name),
            readers=readers_of(samples, name),
            configs=configs,
        )


def places_of(topic: Any) -> list[TopicPartition]:
    """Return the places of partitions by index."""
    return sorted((str(topic.name), int(partition.partition_index)) for partition in topic.partitions)


def read_offsets(cluster: BoundedCluster, places: list[TopicPartition]) -> Offsets:
    """Read the offsets of the first PARTITIONS_MAX."""
    asked = places[:PARTITIONS_MAX]
    try:
        earliest, latest = (list_offsets(cluster, dict.fromkeys(asked, at)) for at in (EARLIEST, LATEST))
        stable = list_offsets(cluster, dict.fromkeys(asked, LATEST), READ_COMMITTED)
    except RetryableError as error:
        return Offsets({}, {}, {}, f"offsets are unknown at the moment: {error}")
    return Offsets(earliest, stable, latest)


def topic_lag(samples: Samples, topic: str) -> int | None:
    """Return the lag of the group that is furthest behind; None if no group reads the topic."""
    return max((lag for _, lag in readers_of(samples, topic)), default=None)


def readers_of(samples: Samples, topic: str) -> list[tuple[str, int]]:
    """(group, lag) of the groups that committed offsets of the topic, the furthest behind first."""
    last = samples.last
    if last is None:
        return []
    found = [
        (group, last.lag(group, topic))
        for group, committed in last.committed.items()
        if any(name == topic for name, _ in committed)
    ]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


KINDS = {"cluster": BROKER, "agent": BROKER, "topic": TOPIC, "group": GROUP}
NAMES_MAX = 1_000
"""Most names in a list to choose from."""


def add_configs(app: FastAPI, console: ConsoleParts) -> None:
    """/configs"""

    @app.get("/configs")
    def configs(kind: str = "cluster", name: str = "", q: str = "", own: str = "") -> HTMLResponse:
        if kind not in KINDS:
            raise InvalidError(f"kind: not one of {', '.join(KINDS)}: {kind[:40]}")
        if kind == "agent" and name and not name.isdecimal():
            raise InvalidError(f"name: not a node id: {name[:40]}")
        with console.link.opened() as cluster:
            nodes = [str(node) for node in cluster.nodes()]
            topics = [str(topic.name) for topic in cluster.metadata()][:NAMES_MAX]
            asked = name or (nodes[0] if kind == "agent" and nodes else "")
            if kind == "cluster":
                asked = ""
            rows = []
            if asked or kind == "cluster":
                found = describe_configs(cluster, (KINDS[kind], asked))
                rows = shown(found, KINDS[kind] if own else None)
        return console.pages.render(
            "configs",
            kind=kind,
            name=asked,
            kinds=list(KINDS),
            q=q,
            own=bool(own),
            rows=[row for row in rows if q.lower() in row["config"].lower()],
            nodes=nodes,
            topics=topics,
        )


def add_tables(app: FastAPI, console: ConsoleParts) -> None:
    """/tables, /table"""

    @app.get("/tables")
    def tables() -> HTMLResponse:
        if missing := console.tables.missing:
            return console.pages.render("tables", missing=missing)
        found = console.tables.tables()
        return console.pages.render("tables", missing="", rows=found.rows, processes=found.role_counts.get(TABLES, 0))

    @app.get("/table")
    def table(name: str) -> HTMLResponse:
        if missing := console.tables.missing:
            return console.pages.render("tables", missing=missing)
        return console.pages.render("table", name=name, **{"table": console.tables.describe(name)})
