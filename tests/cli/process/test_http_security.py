"""The HTTP listener with TLS, tokens and client certificates, over real connections."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.access.tls import LOOK_SECONDS
from headrace.agent.limits.metrics import limits_reached
from headrace.cli.bench.targets import KEY, TOKEN, TRUST, HttpAccess
from headrace.cli.bench.window import StoreCounts, read_counts
from headrace.cli.process import http_server
from headrace.cli.process.http_app import Part, make_app
from headrace.cli.process.http_security import OPEN_PATHS, HttpSecurity
from headrace.cli.process.http_server import HttpServer, bounded
from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.storage.errors import UnavailableError
from tests.agent.access.certificates import Authority
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X2")
MOST = 4
PAGES = ("/metrics", "/v1/status", "/openapi.json", "/nothing", "/healthz/", "//metrics", "/%6Detrics")


class _Probe:
    def warnings(self) -> list[str]:
        return ["a warning"]

    def parts(self) -> list[Part]:
        return [Part("metastore", False, "a reason")]

    async def status(self) -> dict[str, object]:
        return {"node": 1}


class Server:
    """A listener, its authority, and a clock that only the test moves."""

    def __init__(self, directory: Path, *, key: bool = False, trust: bool = False, tokens: str = "") -> None:
        self.clock, self.registry = ManualClock(), CollectorRegistry()
        self.authority = Authority(directory)
        self.key, self.tokens = self.authority.issue("agent", "http.pem"), directory / "tokens"
        flags: dict[str, object] = {}
        if key:
            flags["http.ssl.keystore.location"] = str(self.key)
        if trust:
            flags["http.ssl.truststore.location"] = str(self.authority.path)
        if tokens:
            self.tokens.write_text(tokens)
            flags["http.bearer.token.location"] = str(self.tokens)
        security = HttpSecurity(load(flags=flags), self.clock)
        app = security.guarded(make_app(_Probe(), self.registry))
        connection = security.encrypted(bounded(MOST, limits_reached(self.registry)))
        self.server = HttpServer(app, "127.0.0.1", 0, connection)
        self.address, self.scheme = f"127.0.0.1:{self.server.port}", "https" if key else "http"

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def get(self, path: str, token: str = "", certificate: Path | None = None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{self.scheme}://{self.address}{path}", headers=headers)
        context = self.context(certificate) if self.scheme == "https" else None
        try:
            with urllib.request.urlopen(request, timeout=300, context=context) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def serving(directory: Path, *, key: bool = False, trust: bool = False, tokens: str = "") -> Iterator[Server]:
    made = Server(directory, key=key, trust=trust, tokens=tokens)
    made.server.start()
    try:
        yield made
    finally:
        made.server.stop()


@pytest.mark.parametrize("key", [False, True], ids=["http", "https"])
def test_every_page_but_those_of_probes_needs_a_token(tmp_path: Path, key: bool) -> None:
    with serving(tmp_path, key=key, tokens="first-token\nsecond-token\n") as server:
        for path in PAGES:
            for token in ("", "first-toke", "first-token2", "first-token\u00e9", "first-token second-token"):
                assert server.get(path, token)[0] == 401, (path, token)
        for token in ("first-token", "second-token"):
            assert "headrace_build_info" in server.get("/metrics", token)[1]
            assert server.get("/nothing", token)[0] == 404
        for path in OPEN_PATHS:
            assert server.get(path)[0] in (200, 503)


def test_a_probe_without_a_token_gets_no_details(tmp_path: Path) -> None:
    with serving(tmp_path, tokens="a-token") as server:
        assert server.get("/readyz?verbose") == (503, '{"status":"not ready"}')
        assert {"reason", "warnings", "parts"} <= json.loads(server.get("/readyz?verbose", "a-token")[1]).keys()


def test_without_settings_every_client_may_read(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.get("/v1/status") == (200, '{"node":1}')
        assert "a reason" in server.get("/readyz")[1]


def test_a_token_file_that_changes_counts_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, tokens="before") as server:
        assert server.get("/metrics", "before")[0] == 200
        server.tokens.write_text("before\nafter\n")
        server.clock.jump(LOOK_SECONDS)
        assert [server.get("/metrics", token)[0] for token in ("before", "after")] == [200, 200]
        server.tokens.write_text("after")
        server.clock.jump(LOOK_SECONDS)
        assert [server.get("/metrics", token)[0] for token in ("before", "after", "")] == [401, 200, 401]
        server.tokens.write_text("")
        server.clock.jump(LOOK_SECONDS)
        assert [server.get("/metrics", token)[0] for token in ("after", "")] == [200, 401], "the earlier ones stay"
        assert "tokens not reloaded" in caplog.text


def test_a_client_certificate_is_as_good_as_a_token(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with serving(tmp_path, key=True, trust=True, tokens="a-token") as server:
        own = server.authority.issue("prometheus")
        assert server.get("/metrics", certificate=own)[0] == 200
        assert server.get("/metrics", "a-token")[0] == 200
        assert server.get("/metrics")[0] == 401
        assert server.get("/healthz")[0] == 200, "a probe has no certificate"
        stranger = Authority(tmp_path / "other", "another authority").issue("prometheus")
        with pytest.raises((OSError, http.client.HTTPException)):
            server.get("/metrics", certificate=stranger)


def test_a_renewed_certificate_is_for_the_next_connection(tmp_path: Path) -> None:
    with serving(tmp_path, key=True) as server:
        port = server.server.port
        open_one = http.client.HTTPSConnection("127.0.0.1", port, timeout=300, context=server.context())
        open_one.request("GET", "/healthz")
        assert open_one.getresponse().read()
        before = _serial(server)
        server.authority.issue("agent", "http.pem")
        server.clock.jump(LOOK_SECONDS)
        assert _serial(server) != before
        open_one.request("GET", "/healthz")
        assert open_one.getresponse().status == 200, "the open connection goes on"
        open_one.close()


def _serial(server: Server) -> object:
    with (
        socket.create_connection(("127.0.0.1", server.server.port)) as plain,
        server.context().wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        certificate = encrypted.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


def test_nothing_is_served_in_clear_on_a_port_with_a_key(tmp_path: Path) -> None:
    with serving(tmp_path, key=True) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=300)
        connection.request("GET", "/healthz")
        with pytest.raises((OSError, http.client.HTTPException)):
            connection.getresponse()


async def test_connections_without_a_handshake_do_not_keep_out_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, key=True) as server:
        monkeypatch.setattr(http_server, "WAIT_SECONDS", 600.0)
        idle = [await asyncio.open_connection("127.0.0.1", server.server.port) for _ in range(30)]
        assert (await asyncio.to_thread(server.get, "/healthz"))[0] == 200
        ended = [asyncio.ensure_future(_end(reader)) for reader, _ in idle]
        done, _ = await asyncio.wait(ended[: 30 - MOST])
        assert done == set(ended[: 30 - MOST]), "the oldest are closed"
        counted = server.registry.get_sample_value("headrace_limit_reached_total", {"limit": "http.max.connections"})
        assert counted == 30 + 1 - MOST, "at once, not at the end of the time for a handshake"
        for _, writer in idle:
            writer.close()
        await asyncio.wait(ended)


async def _end(reader: asyncio.StreamReader) -> None:
    try:
        await reader.read()
    except ConnectionError:
        return


def test_the_benchmark_reads_a_secured_page(tmp_path: Path) -> None:
    with serving(tmp_path, key=True, trust=True, tokens="a-token\n") as server:
        trust = {TRUST: str(server.authority.path)}
        for own in ({TOKEN: str(server.tokens)}, {KEY: str(server.authority.issue("bench"))}):
            assert read_counts([server.address], HttpAccess.of(trust | own)) == StoreCounts()
        for wrong in (HttpAccess.of(trust), HttpAccess()):
            with pytest.raises(UnavailableError):
                read_counts([server.address], wrong)
        with pytest.raises(ConfigError, match="no token"):
            HttpAccess.of({TOKEN: str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"http.ssl.keystore.location": "/none"}, "http.ssl.keystore.location: .*/none"),
        ({"http.ssl.truststore.location": "/none"}, "needs http.ssl.keystore.location"),
        ({"http.bearer.token.location": "/none"}, "http.bearer.token.location: /none"),
        ({"http.bearer.token.location": "/dev/null"}, "no token in the file"),
    ],
)
def test_files_that_cannot_be_used_are_named(flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HttpSecurity(load(flags=flags), ManualClock())
