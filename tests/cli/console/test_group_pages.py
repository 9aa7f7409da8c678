"""The pages of groups, one kind after another: members, offsets and lag."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from headrace.cli.console.server import ConsoleServer
from headrace.cli.main import main
from load.dev_server import DevServer
from tests.cli.command_lines import told
from tests.cli.console.browser import PlainBrowser
from tests.cli.console.scene import BILLING, ORDER_COUNT, ORDERS, PAYMENTS, REPORTS, Member, commit
from tests.compat.test_streams_answers import Asked, plan, sub
from tests.share_member import ShareMember


@pytest.fixture
def pages(reading: ConsoleServer) -> PlainBrowser:
    return PlainBrowser(reading.url)


def test_a_groups_page_has_members_and_lag(pages: PlainBrowser, cluster: DevServer) -> None:
    page = pages.get("/groups").text
    assert page.index(f"/group?name={BILLING}") < page.index(f"/group?name={REPORTS}")
    page = pages.get("/group", name=BILLING).text
    assert 'class="n">28</td>' in page, "40 offsets, and 12 are committed"
    assert f"/records?topic={ORDERS}&amp;partition=0&amp;start=offset&amp;at=12" in page
    with Member(cluster.bootstrap, "reads", [ORDERS], "reader-7"):
        page = pages.get("/group", name="reads").text
        assert "reader-7" in page
        assert f"{ORDERS}:0" in page
    assert pages.get("/group", name="no such group").status == 404


def test_a_share_groups_page_has_start_offsets_lag_and_members(pages: PlainBrowser, cluster: DevServer) -> None:
    name = "share-page"
    assert main(["configs", "set", "share.auto.offset.reset=earliest", "--group", name, "-b", cluster.bootstrap]) == 0
    with ShareMember(cluster.bootstrap, name, PAYMENTS, client_id="worker-3") as worker:
        done = told(lambda: worker.poll(1_000), lambda records: bool(records))
        assert worker.acknowledge(done[:5])
        page = pages.get("/group", name=name).text
        assert "worker-3" in page
        assert "Start offsets" in page
        assert f"{PAYMENTS}:0" in page
        assert ">share<" in page
        assert "Committed" not in page
    page = pages.get("/groups", q=name).text
    assert f"/group?name={name}" in page
    assert f'class="n">{ORDER_COUNT - 5}</td>' in page
    assert f'<option value="{PAYMENTS}">' in pages.get("/reset-offsets", group=name).text


@pytest.mark.requirement("X16")
def test_a_streams_groups_page_has_threads_with_their_tasks_and_lag(pages: PlainBrowser, cluster: DevServer) -> None:
    name, at_once = "streams-page", "streams.initial.rebalance.delay.ms=0"
    assert main(["configs", "set", at_once, "--group", name, "-b", cluster.bootstrap]) == 0
    commit(cluster.bootstrap, name, {(PAYMENTS, 0): 20, (PAYMENTS, 1): 60})
    with ExitStack() as stack:
        of = Asked(cluster.bootstrap, stack)
        of.join(name, "thread-1", plan(sub("0", PAYMENTS)))
        of.join("streams-waits", "thread-2", plan(sub("0", "no-such-topic")))
        page = pages.get("/group", name=name).text
        for text in (">streams<", "Stable", "thread-1", f"{PAYMENTS}:0, {PAYMENTS}:1", 'class="n">40</td>'):
            assert text in page
        assert "Start offsets" not in page
        page = pages.get("/groups", q="streams-").text
        assert f"/group?name={name}" in page
        assert "NotReady" in page
        assert "thread-2" in pages.get("/group", name="streams-waits").text
        of.beat(name, "thread-1", -1)
        of.beat("streams-waits", "thread-2", -1)
