"""Every page of a running cluster: what it shows, that it escapes what it shows, and its errors."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator

import confluent_kafka
import pytest

from headrace.cli.console.access import CONTENT_SECURITY_POLICY
from headrace.cli.console.server import ConsoleOptions, ConsoleServer
from headrace.config.settings import Settings
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import client_config
from headrace.protocol.link_requests import LinkOp, LinkRequest
from headrace.storage.clock import SystemClock
from load.dev_server import DevServer
from tests.balancer import Balancer
from tests.cli.command_lines import told
from tests.cli.console.browser import PlainBrowser
from tests.cli.console.conftest import serving
from tests.cli.console.scene import (
    BILLING,
    EMPTY,
    FIRST_MS,
    HARD,
    HOSTILE,
    HOSTILE_GROUP,
    LARGE,
    ORDER_COUNT,
    ORDERS,
    PAUSE_REASON,
    PAYMENTS,
    SECONDS_MAX,
    Member,
    console_of,
)
from tests.forked_cluster import ForkedCluster

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def pages(reading: ConsoleServer) -> PlainBrowser:
    return PlainBrowser(reading.url)


@pytest.fixture
def kafka_only(changing: ConsoleServer) -> PlainBrowser:
    return PlainBrowser(changing.url)


def test_the_overview_shows_agents_quorum_and_alarms(pages: PlainBrowser, kafka_only: PlainBrowser) -> None:
    page = pages.get("/").text
    for text in ("2 of 2", "is the active controller", "metadata.format", "postgres, standbys", "Last contact"):
        assert text in page
    page = kafka_only.get("/").text
    for text in ("2 of 2", "is the active controller", "metadata.format", "with <code>--metastore-url</code>"):
        assert text in page
    assert "Last contact" not in page


@pytest.mark.requirement("X14")
def test_links_are_shown_with_their_topics_and_what_is_wrong(pages: PlainBrowser, cluster: ForkedCluster) -> None:
    configs: dict[str, str | None] = {"bootstrap.servers": cluster.bootstrap, "topics": ORDERS}
    with KafkaCluster.of(client_config(cluster.bootstrap, None)) as asked:
        asked.links(LinkRequest(op=LinkOp.CREATE, link="old", configs=configs))
        try:
            page = told(lambda: pages.get("/links").text, lambda text: "and is no copy" in text)
        finally:
            asked.links(LinkRequest(op=LinkOp.DROP, link="old"))
    assert '<a href="#old">old</a>' in page
    assert page.count("following</span>") == 1
    assert f'<th scope="row" class="name">{ORDERS}</th>' in page, "a topic that is not copied"
    assert "no link: headrace link create makes one" in pages.get("/links").text


def test_tables_are_shown_with_lag_state_reason_and_dead_letters(pages: PlainBrowser, kafka_only: PlainBrowser) -> None:
    page = pages.get("/tables").text
    assert f'href="/table?name={ORDERS}"' in page
    assert f'data-label="Lag" class="n">{ORDER_COUNT}<' in page
    assert page.count("following</span>") == page.count("paused</span>") == 1
    assert html.escape(PAUSE_REASON) in page
    assert "No process has the role tables" in page
    page = pages.get("/table", name=ORDERS).text
    assert page.count('<th scope="row" class="n">') == 3, "partitions"
    for engine in ("pyiceberg", "Spark", "DuckDB"):
        assert f"Read it with {engine}" in page
    assert "load_catalog(&#34;dev&#34;" in page
    assert pages.get("/table", name="nothing").status == 404
    assert "no process has the role tables: 2 tables get no records" in pages.get("/").text
    assert "--metastore-url, --bucket, --tables-catalog-name" in kafka_only.get("/tables").text


def test_a_console_without_pyiceberg_says_so(reading: ConsoleServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    answer = PlainBrowser(reading.url).get("/tables")
    assert answer.status == 200
    assert "pyiceberg is not installed; the extra `tables` has it" in answer.text
    assert PlainBrowser(reading.url).get("/").status == 200


def test_a_catalog_that_is_away_is_a_page_that_loads_itself_again(cluster: DevServer) -> None:
    settings = Settings(
        metastore_url=cluster.metastore_url,
        bucket=cluster.bucket,
        tables_catalog_name="dev",
        tables_catalog_uri=f"http://{NOWHERE}",
    )
    with serving(console_of(cluster, settings=settings)) as console:
        answer = PlainBrowser(console.url).get("/tables")
        assert answer.status == 503
        assert "the catalog does not answer" in answer.text
        assert "the catalog does not answer" in PlainBrowser(console.url).get("/").text


def test_topics_have_offsets_rates_and_lag(pages: PlainBrowser) -> None:
    page = pages.get("/topics").text
    for name in (ORDERS, PAYMENTS, HARD, EMPTY):
        assert f"/topic?name={name}" in page
    assert "0/s" in page
    assert ORDERS not in pages.get("/topics", q="PAY").text.replace("Received and sent", "")
    page = pages.get("/topic", name=ORDERS).text
    assert page.count(f"/records?topic={ORDERS}&amp;partition=") == 3
    assert "retention.ms" in page
    assert re.search(r"<dd class=\"id\">[A-Za-z0-9_-]{22}</dd>", page), "Kafka's form of a topic id"
    assert f"/group?name={BILLING}" in page
    assert "/confirm/" not in page


def test_an_open_transaction_holds_the_last_stable_offset(pages: PlainBrowser, cluster: DevServer) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "console"})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(EMPTY, "not yet")
    assert producer.flush(SECONDS_MAX) == 0
    told(lambda: pages.get("/topic", name=EMPTY).text, lambda page: "open transaction" in page)
    page = pages.get("/records", topic=EMPTY).text
    assert "stable up to 0" in page
    assert "not yet" in page
    producer.abort_transaction(SECONDS_MAX)
    told(lambda: pages.get("/topic", name=EMPTY).text, lambda page: "open transaction" not in page)


def test_read_committed_leaves_out_open_and_aborted_transactions(pages: PlainBrowser, cluster: DevServer) -> None:
    def shown(isolation: str) -> list[str]:
        page = pages.get("/records", topic=EMPTY, start="earliest", limit=200, isolation=isolation).text
        return [text for text in ("never-1", "never-2", "for-good", "still-open") if f">{text}<" in page]

    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "isolation"})
    producer.init_transactions(SECONDS_MAX)
    for values, ends in (
        (["never-1"], "abort"),
        (["for-good"], "commit"),
        (["never-2"], "abort"),
        (["still-open"], ""),
    ):
        producer.begin_transaction()
        for value in values:
            producer.produce(EMPTY, value)
        assert producer.flush(SECONDS_MAX) == 0
        if ends == "abort":
            producer.abort_transaction(SECONDS_MAX)
        elif ends == "commit":
            producer.commit_transaction(SECONDS_MAX)
    everything = ["never-1", "never-2", "for-good", "still-open"]
    assert told(lambda: shown("read_uncommitted"), lambda found: found == everything) == everything
    assert shown("read_committed") == ["for-good"]
    assert pages.get("/records", topic=EMPTY, isolation="serializable").status == 400
    assert "isolation=read_committed" in pages.get("/records", topic=ORDERS, isolation="read_committed").text
    producer.abort_transaction(SECONDS_MAX)
    assert shown("read_committed") == ["for-good"]


def test_records_are_found_by_offset_and_by_time(pages: PlainBrowser) -> None:
    def offsets(**query: object) -> list[int]:
        page = pages.get("/records", topic=ORDERS, partition=0, limit=25, **query).text
        return [n for n in range(50) if f"partition=0&amp;offset={n}&#34;" in page or f'offset={n}">' in page]

    assert offsets(start="earliest") == list(range(25))
    assert offsets(start="latest") == list(range(15, 40))
    assert offsets(start="offset", at=37) == [37, 38, 39]
    assert offsets(start="time", at=FIRST_MS + 90_000) == list(range(30, 40))
    assert offsets(start="time", at="2126-01-01T00:00") == []
    assert "Offset 9,999 is outside" in pages.get("/records", topic=ORDERS, start="offset", at=9999).text
    assert "customer-" in pages.get("/records", topic=ORDERS, partition=2).text
    for query, why in (
        ({"start": "offset", "at": "x"}, "at: not a whole number"),
        ({"start": "time", "at": "yesterday"}, "at: not a date and time"),
        ({"start": "middle"}, "start: not one of"),
        ({"limit": 100_000}, "limit: not between 1 and 200"),
        ({"partition": 3_000_000_000}, "partition: not between"),
    ):
        answer = pages.get("/records", topic=ORDERS, **query)
        assert (answer.status, why in answer.text) == (400, True), query
    assert pages.get("/records", topic=ORDERS, partition=7).status == 404
    assert pages.get("/record", topic=ORDERS, partition=0, offset=40).status == 404


def test_hard_values_are_shown_as_they_are(pages: PlainBrowser) -> None:
    page = pages.get("/records", topic=HARD, start="earliest").text
    assert "tombstone" in page
    assert "00000000  00 01 02 03" in page, "binary values are in hex"
    assert "&#34;name&#34;: &#34;Änne&#34;,\n" not in page
    assert "  &#34;who&#34;: {\n" in page, "JSON is indented"
    assert "{&#34;a&#34;: 1, &#34;a&#34;: 2}" in page, "unless that loses something"
    assert "turns \\u{202e} around" in page
    assert "the first part of 293 KiB" in page
    assert len(page) < 60_000, "a page shows a bounded part of large values"
    whole = pages.get("/record", topic=HARD, partition=0, offset=6).text
    assert len(LARGE) > len(whole) > 256 * 1024


def test_nothing_from_data_is_html(pages: PlainBrowser, cluster: DevServer) -> None:
    with Member(cluster.bootstrap, HOSTILE_GROUP, [HARD], HOSTILE):
        answers = [
            pages.get("/records", topic=HARD, start="earliest"),
            pages.get("/record", topic=HARD, partition=0, offset=0),
            pages.get("/groups"),
            pages.get("/group", name=HOSTILE_GROUP),
            pages.get("/reset-offsets", group=HOSTILE_GROUP, to="earliest"),
            pages.get("/configs", kind="group", name=HOSTILE_GROUP),
        ]
    for answer in answers:
        assert answer.status == 200, answer.text
        assert "&lt;img src=x onerror=alert(1)&gt;" in answer.text
    answers += [pages.get("/topics", q=HOSTILE), pages.get("/topic", name=HOSTILE), pages.get(f"/{HOSTILE[1:4]}%3Cimg")]
    answers += [pages.get("/records", topic=ORDERS, start=HOSTILE), pages.get("/configs", kind=HOSTILE)]
    for answer in answers:
        assert "<img src=x" not in answer.text
        assert "<script>" not in answer.text


def test_a_reset_is_previewed(pages: PlainBrowser) -> None:
    def moves(**query: object) -> str:
        return pages.get("/reset-offsets", group=BILLING, topic=ORDERS, **query).text

    assert "A preview changes nothing" in moves()
    assert "-12</td>" in moves(to="earliest")
    assert "+28</td>" in moves(to="latest")
    assert "+5</td>" in moves(to="shift", value=5)
    assert "outside" in moves(to="offset", value=39_999)
    assert "+18</td>" in moves(to="datetime", value=FIRST_MS + 90_000)
    assert "This console is read-only" in moves(to="earliest")
    assert pages.get("/reset-offsets", group=BILLING, to="shift", value="").status == 400
    assert pages.get("/reset-offsets", group=BILLING, to="nowhere", value="1").status == 400


def test_files_and_jobs_need_the_metastore(pages: PlainBrowser, kafka_only: PlainBrowser) -> None:
    page = pages.get("/files").text
    for text in (
        "Live files by level",
        "What runs now",
        "What waits",
        "retention",
        "Dead bytes",
        "Small files in Postgres",
    ):
        assert text in page
    assert "needs the metastore" in kafka_only.get("/files").text


def test_configs_name_their_sources(pages: PlainBrowser) -> None:
    page = pages.get("/configs", kind="topic", name=ORDERS, own=1).text
    assert "3155760000000" in page
    assert "cleanup.policy" not in page
    page = pages.get("/configs", kind="agent", q="linger").text
    assert "STATIC_BROKER_CONFIG" in page
    assert "log.retention.ms" not in pages.get("/configs").text, "only what was set for all brokers is listed"
    assert pages.get("/configs", kind="planet").status == 400


def test_charts_are_drawn_on_the_server(pages: PlainBrowser, kafka_only: PlainBrowser) -> None:
    assert pages.get("/charts/live").text.count("<svg") == 5
    assert 'hx-get="/charts/live?minutes=15"' in pages.get("/charts", minutes=15).text
    assert kafka_only.get("/charts/live").text.count("<svg") == 2
    assert "need <code>--agent-http</code>" in kafka_only.get("/charts").text


def test_clients_have_rates_and_quotas(pages: PlainBrowser, kafka_only: PlainBrowser, reading: ConsoleServer) -> None:
    reading.sampler.take()
    page = pages.get("/clients").text
    assert "ANONYMOUS" in page
    assert "all others" in page
    assert "Set a quota" not in page, "the console is read-only"
    assert "ANONYMOUS" not in pages.get("/clients", q="no client has this name").text
    without = kafka_only.get("/clients").text
    assert "need <code>--agent-http</code>" in without
    assert "no client was seen" in without


def test_every_answer_keeps_the_browser_in(pages: PlainBrowser) -> None:
    for path in ("/", "/topic", "/no-such-page", "/static/console.css", "/healthz"):
        headers = pages.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert pages.get("/").headers["cache-control"] == "no-store"
    assert pages.ask("/", {"Host": "attacker.example"}).status == 421
    assert pages.ask("/", {"Host": "localhost:1"}).status == 200


@pytest.fixture
def away() -> Iterator[tuple[PlainBrowser, Balancer]]:
    """A console of a cluster behind an address at which nothing answers yet."""
    with Balancer([NOWHERE]) as balancer:
        options = ConsoleOptions(client_config(balancer.address, None), Settings(), ("127.0.0.1", 0))
        with serving(ConsoleServer(options, SystemClock())) as console:
            yield PlainBrowser(console.url), balancer


def test_a_cluster_that_is_away_comes_back(away: tuple[PlainBrowser, Balancer], cluster: DevServer) -> None:
    pages, balancer = away
    for path in ("/", "/topics", "/groups", "/configs"):
        answer = pages.get(path)
        assert answer.status == 503
        assert f"The console tried {balancer.address}" in answer.text
        assert '<meta http-equiv="refresh" content="5">' in answer.text
        assert answer.headers["retry-after"] == "5"
    assert pages.get("/charts").status == 200, "the past stays"
    assert pages.get("/healthz").status == 200
    balancer.backends = [cluster.agents[0].kafka]
    assert pages.get("/topics").status == 200


def test_a_metastore_that_is_away_leaves_the_rest(cluster: DevServer) -> None:
    settings = Settings(metastore_url="postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")
    options = ConsoleOptions(client_config(cluster.bootstrap, None), settings, ("127.0.0.1", 0))
    with serving(ConsoleServer(options, SystemClock())) as console:
        pages = PlainBrowser(console.url)
        answer = pages.get("/")
        assert answer.status == 200
        assert "the metastore is not reached" in answer.text
        assert "2 of 2" in answer.text
        answer = pages.get("/files")
        assert (answer.status, "and Postgres at 127.0.0.1:1/none" in answer.text) == (503, True)


def test_state_is_in_the_url(pages: PlainBrowser) -> None:
    """The same address shows the same, also in another browser."""
    path = f"/records?topic={ORDERS}&partition=1&start=offset&at=3&limit=25"
    assert pages.get(path).text == pages.get(path).text
    for path in ("/healthz", "/readyz"):
        assert json.loads(pages.get(path).text) == {"status": "alive"}
