"""Changes: only with --allow-changes, only after a confirmation, only from a page of the console."""

from __future__ import annotations

import pytest

from headrace.cli.console.server import ConsoleServer
from load.dev_server import DevServer
from tests.cli.command_lines import Run, json_runner, told
from tests.cli.console.browser import PlainBrowser, fields
from tests.cli.console.scene import ORDERS, PAYMENTS, REPORTS, Member, commit

CREATE = {"name": "made-here", "partitions": "2", "configs": "retention.ms=9000\r\n"}


@pytest.fixture
def tools(cluster: DevServer, capsys: pytest.CaptureFixture[str]) -> Run:
    return json_runner(cluster.bootstrap, capsys)


@pytest.fixture
def pages(changing: ConsoleServer) -> PlainBrowser:
    return PlainBrowser(changing.url)


def test_a_console_without_the_flag_changes_nothing(reading: ConsoleServer, tools: Run) -> None:
    pages = PlainBrowser(reading.url)
    for path in ("/new-topic", "/confirm/create-topic?name=x", "/confirm/delete-topic?name=orders"):
        answer = pages.get(path)
        assert (answer.status, "start it with --allow-changes" in answer.text) == (403, True)
    assert 'method="post"' not in pages.get("/reset-offsets", group=REPORTS, to="earliest").text
    token = pages.cookies | {"csrf_token": "0" * 64}
    assert pages.post("/apply/create-topic", CREATE | token).status == 403
    assert "made-here" not in {row["topic"] for row in tools("topics", "list")}


def test_a_topics_life(pages: PlainBrowser, tools: Run) -> None:
    confirmation = pages.get("/confirm/create-topic", **CREATE).text
    assert "Topic made-here is created with 2 partitions." in confirmation
    assert "made-here" not in {row["topic"] for row in tools("topics", "list")}, "GET changes nothing"
    made = pages.post("/apply/create-topic", fields(confirmation))
    assert (made.status, made.headers["location"]) == (303, "/topic?name=made-here")
    (topic,) = told(lambda: tools("topics", "describe", "made-here"), bool)
    assert (len(topic["partitions"]), topic["configs"]) == (2, {"retention.ms": "9000"})
    assert "already exists" in pages.get("/confirm/create-topic", **CREATE).text

    page = pages.get("/confirm/alter-topic-config", name="made-here", config="retention.ms", value="8000")
    assert pages.post("/apply/alter-topic-config", fields(page.text)).status == 303
    page = pages.get("/confirm/alter-topic-config", name="made-here", config="segment.ms", value="70000")
    assert pages.post("/apply/alter-topic-config", fields(page.text)).status == 303
    page = pages.get("/confirm/alter-topic-config", name="made-here", config="retention.ms", action="delete")
    assert "is removed from the topic" in page.text
    assert pages.post("/apply/alter-topic-config", fields(page.text)).status == 303
    page = pages.get("/confirm/add-partitions", name="made-here", partitions=3)
    assert "the order of keys" in page.text
    assert pages.post("/apply/add-partitions", fields(page.text)).status == 303
    (topic,) = told(lambda: tools("topics", "describe", "made-here"), lambda found: len(found[0]["partitions"]) == 3)
    assert topic["configs"] == {"segment.ms": "70000"}

    form = fields(pages.get("/confirm/delete-topic", name="made-here").text)
    for typed in ({}, {"typed_name": "made"}):
        answer = pages.post("/apply/delete-topic", form | typed)
        assert (answer.status, "nothing was done" in answer.text) == (400, True)
    assert pages.post("/apply/delete-topic", form | {"typed_name": "made-here"}).status == 303
    told(lambda: tools("topics", "list"), lambda rows: "made-here" not in {row["topic"] for row in rows})
    assert "does not exist" in pages.get("/confirm/delete-topic", name="made-here").text


def test_a_quota_is_set_for_a_client(pages: PlainBrowser, tools: Run) -> None:
    user = 'loader"><b>[/x]'
    form = pages.get("/new-quota", user=user, client_id="c").text
    assert 'value="loader&#34;&gt;&lt;b&gt;[/x]"' in form
    wanted = {"user": user, "client_id": "c", "key": "producer_byte_rate", "value": "1048576"}
    page = pages.get("/confirm/set-quota", **wanted)
    assert "client-id=c is 1,048,576 from then on" in page.text
    assert pages.post("/apply/set-quota", fields(page.text)).status == 303
    rows = told(lambda: tools("quotas", "list"), bool)
    assert [(row["user"], row["client_id"], row["quota"], row["value"]) for row in rows] == [
        (user, "c", "producer_byte_rate", 1048576.0)
    ]
    assert "<td>loader&#34;&gt;&lt;b&gt;[/x]</td>" in pages.get("/clients").text
    tools("quotas", "delete", "--user", user, "--client-id", "c", "--yes")
    for wrong in ({"value": "0"}, {"value": "nan"}, {"key": "connection_creation_rate"}, {"user": "", "client_id": ""}):
        assert pages.get("/confirm/set-quota", **(wanted | wrong)).status == 400


def test_a_form_of_another_site_is_refused(pages: PlainBrowser, changing: ConsoleServer, tools: Run) -> None:
    form = fields(pages.get("/confirm/create-topic", name="forged").text)
    victim = PlainBrowser(changing.url)
    victim.get("/confirm/create-topic", name="forged")
    for browser, sent, headers in (
        (pages, {"name": "forged"}, {}),
        (pages, form | {"csrf_token": "0" * 64}, {}),
        (pages, form, {"Sec-Fetch-Site": "cross-site"}),
        (pages, form, {"Sec-Fetch-Site": "same-site"}),
        (victim, form, {}),  # the token belongs to another browser
        (PlainBrowser(changing.url), form, {}),
    ):
        answer = browser.post("/apply/create-topic", sent, headers)
        assert (answer.status, "not of this console" in answer.text) == (403, True)
    assert pages.get("/apply/create-topic", **form).status == 405
    assert "forged" not in {row["topic"] for row in tools("topics", "list")}
    cookie = pages.get("/confirm/create-topic", name="forged").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert pages.post("/apply/create-topic", {"name": "x" * 300_000}).status == 400


def test_what_the_cluster_refuses_is_said_before_the_confirmation(pages: PlainBrowser) -> None:
    for path, query, why in (
        ("create-topic", {"name": "a/b"}, "INVALID_TOPIC"),
        ("create-topic", {"name": "a", "configs": "retention"}, "not a line of the form name=value"),
        ("create-topic", {"name": "a", "partitions": "0"}, "partitions: not between"),
        ("create-topic", {}, "no topic is named"),
        ("alter-topic-config", {"name": ORDERS, "config": "no.such", "value": "1"}, "unknown topic config"),
        ("alter-topic-config", {"name": ORDERS}, "no name is given"),
        ("add-partitions", {"name": ORDERS, "partitions": "2"}, "3 partitions"),
        ("add-partitions", {"name": ORDERS}, "no number is given"),
        ("reset-offsets", {"group": "g", "moves": "[[1]]"}, "not those of a preview"),
    ):
        answer = pages.get(f"/confirm/{path}", **query)
        assert answer.status == 400, query
        assert why.lower() in answer.text.lower(), answer.text
        assert 'method="post"' not in answer.text
    assert pages.get("/confirm/format-disk").status == 404
    assert pages.post("/apply/format-disk", {}).status == 404


def test_offsets_are_reset_to_what_the_preview_showed(pages: PlainBrowser, tools: Run, cluster: DevServer) -> None:
    commit(cluster.bootstrap, "resets", {(PAYMENTS, 0): 5, (PAYMENTS, 1): 60})
    form = fields(pages.get("/reset-offsets", group="resets", to="shift", value=-4).text)
    commit(cluster.bootstrap, "resets", {(PAYMENTS, 1): 59})
    answer = pages.post("/apply/reset-offsets", form)
    assert (answer.status, answer.headers["location"]) == (303, "/group?name=resets")
    assert [row["current_offset"] for row in tools("groups", "describe", "resets")] == [1, 56]
    with Member(cluster.bootstrap, "resets", [PAYMENTS], "member"):
        preview = pages.get("/reset-offsets", group="resets", to="earliest").text
        assert "the cluster refuses a reset" in preview
        refused = pages.post("/apply/reset-offsets", fields(preview))
        assert (refused.status, "has members" in refused.text) == (400, True)
