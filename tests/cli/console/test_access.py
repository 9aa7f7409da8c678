"""Check who reaches the console: this machine, or clients with a token."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import socket
import ssl
import subprocess
import sys
import time
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import __version__
from headrace.agent.access.tls import LOOK_SECONDS
from headrace.cli.console import table_link
from headrace.cli.console.cluster_link import PAGE_SECONDS, BoundedCluster
from headrace.cli.console.server import ConsoleOptions, ConsoleServer, refuse_open_network
from headrace.cli.console.table_link import TableLink
from headrace.cli.main import main
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.transport import client_config
from headrace.storage.clock import SystemClock
from headrace.storage.errors import NotFoundError, UnavailableError
from tests.agent.access.certificates import Authority
from tests.cli.console.browser import PlainBrowser
from tests.cli.console.conftest import serving
from tests.manual_clock import ManualClock


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "console.example"])
def test_others_need_a_token_or_a_certificate(host: str) -> None:
    with pytest.raises(ConfigError, match=r"set http\.bearer\.token\.location or http\.ssl\.truststore\.location"):
        refuse_open_network(host, Settings())
    with pytest.raises(ConfigError, match="would see every record"):
        refuse_open_network(host, Settings(http_ssl_keystore_location="key.pem"))
    refuse_open_network(host, Settings(http_bearer_token_location="tokens"))
    for own in ("127.0.0.1", "::1", "localhost"):
        refuse_open_network(own, Settings())


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--listen", "0.0.0.0:0"], "others can reach 0.0.0.0"),
        (["--listen", "9646"], "--listen: not a host and port: 9646"),
        (["--agent-http", "agent:9644"], "--agent-http: not an http or https URL: agent:9644"),
        (["--agent-http-token", "/nothing/here"], "--agent-http-token: /nothing/here"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.cli.console import command

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command.signal, "signal", lambda *_: None)
        assert main(["console", "-b", "127.0.0.1:1", *flags]) == 1
    assert why in capsys.readouterr().err


def test_the_command_serves_until_it_is_stopped() -> None:
    words = ["console", "-b", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", *words], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    with process:
        assert process.stdout is not None
        ready, _, url = process.stdout.readline().strip().partition("=")
        assert ready == "ready console"
        assert PlainBrowser(url).get("/healthz").status == 200
        assert PlainBrowser(url).get("/topics").status == 503
        process.terminate()
        assert process.wait(300) == 0


def test_a_token_is_given_once(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    settings = Settings(http_bearer_token_location=str(tokens))
    options = ConsoleOptions(client_config("127.0.0.1:1", None), settings, ("127.0.0.1", 0))
    clock = ManualClock()
    with serving(ConsoleServer(options, clock)) as console:
        pages = PlainBrowser(console.url)
        answer = pages.get("/charts")
        assert (answer.status, answer.headers["location"]) == (303, "/sign-in")
        assert pages.ask("/charts", {"Accept": "*/*"}).status == 401
        assert pages.ask("/charts", {"Authorization": "Bearer wrong"}).status == 401
        assert pages.ask("/charts", {"Authorization": "Bearer secret"}).status == 200
        assert pages.ask("/charts", {"Cookie": "headrace_session=guessed", "Accept": "*/*"}).status == 401
        assert pages.get("/healthz").status == pages.get("/static/console.css").status == 200
        assert pages.get("/static/../charts").status == 404
        assert pages.get("/sign-in").status == 200
        refused = pages.post("/sign-in", {"token": "wrong"})
        assert (refused.status, "not accepted" in refused.text, pages.cookies) == (401, True, {})
        assert pages.post("/sign-in", {"token": "secret"}).status == 303
        assert pages.get("/charts").status == 200
        assert "secret" not in str(pages.cookies)
        tokens.write_text("another\n")
        asyncio.run(clock.advance(LOOK_SECONDS))
        assert pages.get("/charts").status == 401, "a token that is gone ends its sessions"


@pytest.fixture
def signing_in(tmp_path: Path) -> Iterator[ConsoleServer]:
    """A console that needs a token."""
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    settings = Settings(http_bearer_token_location=str(tokens))
    options = ConsoleOptions(client_config("127.0.0.1:1", None), settings, ("127.0.0.1", 0), allows_changes=True)
    with serving(ConsoleServer(options, ManualClock())) as console:
        yield console


@pytest.mark.requirement("X2")
def test_what_needs_no_sign_in_says_nothing_about_the_cluster(signing_in: ConsoleServer) -> None:
    pages = PlainBrowser(signing_in.url)
    answers = [
        pages.get("/sign-in"),
        pages.post("/sign-in", {"token": "wrong"}),
        pages.post("/sign-in", {"token": "\u00e9"}),
        pages.post("/sign-in", {"token": "x" * 300_000}),
        pages.get("/static/none"),
    ]
    assert [answer.status for answer in answers] == [200, 401, 400, 400, 404]
    for answer in answers:
        assert "127.0.0.1:1" not in answer.text
        assert __version__ not in answer.text
        assert "changes allowed" not in answer.text
    pages.post("/sign-in", {"token": "secret"})
    assert "127.0.0.1:1" in pages.get("/charts").text


@pytest.mark.requirement("X2")
def test_a_form_token_that_is_no_token_is_refused(signing_in: ConsoleServer) -> None:
    """It was an error of the server."""
    pages = PlainBrowser(signing_in.url)
    pages.post("/sign-in", {"token": "secret"})
    pages.cookies["headrace_browser"] = "own"
    refused = pages.post("/apply/delete-topic", {"csrf_token": "\u00e9"})
    assert (refused.status, "ASCII" in refused.text) == (400, True)


@pytest.mark.requirement("X7")
def test_a_client_that_leaves_within_its_request_is_one_debug_line(
    signing_in: ConsoleServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with socket.create_connection(("127.0.0.1", signing_in.http.port)) as client:
        client.sendall(b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nt")
    for _ in range(6_000):
        if lines := [record for record in caplog.records if "the client left" in record.getMessage()]:
            break
        time.sleep(0.01)
    assert [(record.levelname, record.exc_info) for record in lines] == [("DEBUG", None)]
    assert "Traceback" not in caplog.text


def test_with_tls_the_cookie_is_for_tls_only(tmp_path: Path) -> None:
    authority, tokens = Authority(tmp_path), tmp_path / "tokens"
    tokens.write_text("secret\n")
    key = str(authority.issue("console", "console.pem"))
    settings = Settings(http_bearer_token_location=str(tokens), http_ssl_keystore_location=key)
    options = ConsoleOptions(client_config("127.0.0.1:1", None), settings, ("127.0.0.1", 0))
    with serving(ConsoleServer(options, SystemClock())) as console:
        assert console.url.startswith("https://")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", console.http.port, context=context, timeout=300)
        connection.request("POST", "/sign-in", "token=secret")
        cookie = connection.getresponse().headers["set-cookie"]
        connection.close()
    assert "Secure" in cookie
    assert "HttpOnly" in cookie


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_server_that_never_answers_costs_a_page_its_limit(silent: str) -> None:
    patient = client_config(silent, None)
    options = ConsoleOptions(dataclasses.replace(patient, request_timeout_ms=50), Settings(), ("127.0.0.1", 0))
    with serving(ConsoleServer(options, SystemClock())) as console:
        answer = PlainBrowser(console.url).get("/topics")
    assert (answer.status, "timed out" in answer.text) == (503, True)


def test_after_its_time_a_page_asks_nothing_more() -> None:
    clock = ManualClock()
    cluster = BoundedCluster(client_config("127.0.0.1:1", None), clock, PAGE_SECONDS)
    asyncio.run(clock.advance(PAGE_SECONDS))
    with pytest.raises(UnavailableError, match="in time"):
        cluster.ask(ApiKey.METADATA, None)
    with pytest.raises(UnavailableError, match="no time is left"):
        cluster.__enter__()


def test_a_page_of_another_site_gets_no_answers_but_may_lead_here(changing: ConsoleServer) -> None:
    pages = PlainBrowser(changing.url)
    image = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    script = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
    frame = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    link = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for site in ("cross-site", "same-site"):
        for path in ("/", "/topics", "/table?name=x", "/records?topic=t", "/static/console.css"):
            for kind in (image, script, frame):
                assert pages.ask(path, {"Sec-Fetch-Site": site} | kind).status == 403, (path, site, kind)
        assert pages.ask("/topics", {"Sec-Fetch-Site": site} | link).status == 200
    for site in ("same-origin", "none"):
        assert pages.ask("/topics", {"Sec-Fetch-Site": site} | script).status == 200
    assert pages.get("/topics").status == 200, "programs and old browsers do not say it"


class _Found:
    rows: typing.ClassVar = [{"table": "orders"}]


def test_the_catalog_is_opened_for_tables_that_there_are() -> None:
    asked: list[str] = []
    link = TableLink(Settings(), SystemClock())
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableLink, "tables", lambda self: _Found)

            async def described(settings: Settings, name: str) -> dict[str, object]:
                asked.append(name)
                return {"table": name}

            patch.setattr(table_link, "_described", described)
            for number in range(50):
                with pytest.raises(NotFoundError):
                    link.describe(f"x{number}")
            assert asked == []
            assert link.describe("orders") == {"table": "orders"}
            assert asked == ["orders"]
    finally:
        link.close()
