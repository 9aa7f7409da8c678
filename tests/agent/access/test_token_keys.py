"""The keys of OAUTHBEARER's tokens: from a file, and from a real HTTPS server that replaces its keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.agent.access.sasl.exchange import Authenticated
from headrace.agent.access.sasl.key_request import LARGEST_BYTES, fetch
from headrace.agent.access.sasl.oauthbearer import (
    UNKNOWN_KEY_SECONDS,
    FetchedKeys,
    OauthBearerExchange,
    TokenKeys,
    token_keys,
)
from headrace.agent.access.tls import LOOK_SECONDS
from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.config.security_settings import SecuritySettings
from tests.agent.access.certificates import Authority
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("C13.2", "X2")
REFRESH_MS = 60_000


class Issuer:
    """Keys by id, and tokens that they sign."""

    def __init__(self, *key_ids: str) -> None:
        self.keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        for key_id in key_ids:
            self.add(key_id)

    def add(self, key_id: str) -> None:
        self.keys[key_id] = ec.generate_private_key(ec.SECP256R1())

    def key_set(self) -> bytes:
        public = {
            key_id: json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) for key_id, key in self.keys.items()
        }
        found = [key | {"kid": key_id, "use": "sig", "alg": "ES256"} for key_id, key in public.items()]
        return json.dumps({"keys": found}).encode()

    def token(self, key_id: str, clock: ManualClock, signed_with: ec.EllipticCurvePrivateKey | None = None) -> bytes:
        claims = {"sub": "alice", "exp": clock.wall_ms() // 1000 + 600}
        key = signed_with or self.keys[key_id]
        return b"n,,\x01auth=Bearer " + jwt.encode(claims, key, "ES256", {"kid": key_id}).encode() + b"\x01\x01"


async def logs_in(keys: TokenKeys, clock: ManualClock, message: bytes) -> bool:
    """Return whether the token is accepted."""
    return isinstance(await OauthBearerExchange(SecuritySettings(), keys, clock).step(message), Authenticated)


def settings(url: str) -> SecuritySettings:
    return load(
        flags={
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": REFRESH_MS,
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": 100,
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": 400,
        }
    )


class Endpoint:
    """A server of a key set; `answers` counts."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer, self.answers, self.status = issuer, 0, 200
        self.body: bytes | None = None
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.answers += 1
        if request.path == "/elsewhere":
            raise web.HTTPFound(self.url)
        body = self.issuer.key_set() if self.body is None else self.body
        return web.Response(body=body, status=self.status)


@contextlib.asynccontextmanager
async def serving(directory: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoint]:
    """Serve keys over HTTPS on loopback, with a certificate that this process trusts."""
    authority, endpoint = Authority(directory), Endpoint(issuer)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    monkeypatch.setenv("no_proxy", "*")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("localhost"))
    application = web.Application()
    application.router.add_get("/{path}", endpoint.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    endpoint.url = f"https://localhost:{port}/keys"
    try:
        yield endpoint
    finally:
        await runner.cleanup()


async def test_keys_are_fetched_and_replaced_when_a_token_names_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, issuer = ManualClock(), Issuer("one")
    async with serving(tmp_path, issuer, monkeypatch) as endpoint:
        keys = token_keys(settings(endpoint.url), clock)
        assert await logs_in(keys, clock, issuer.token("one", clock))
        old = issuer.token("one", clock)
        issuer.keys.clear()
        issuer.add("two")
        clock.jump(UNKNOWN_KEY_SECONDS)
        assert await logs_in(keys, clock, issuer.token("two", clock)), "it waits for the new keys"
        assert not await logs_in(keys, clock, old)
        assert endpoint.answers == 2


async def test_unknown_keys_cause_one_request_per_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, issuer, stranger = ManualClock(), Issuer("one"), Issuer(*(f"made-up-{n}" for n in range(20)))
    async with serving(tmp_path, issuer, monkeypatch) as endpoint:
        keys = token_keys(settings(endpoint.url), clock)
        tokens = [stranger.token(key_id, clock) for key_id in stranger.keys]
        assert not any(await asyncio.gather(*(logs_in(keys, clock, token) for token in tokens)))
        assert not any([await logs_in(keys, clock, token) for token in tokens])
        assert endpoint.answers == 1
        assert await logs_in(keys, clock, issuer.token("one", clock)), "known keys are not affected"
        assert not await logs_in(keys, clock, issuer.token("one", clock, signed_with=stranger.keys["made-up-1"]))
        clock.jump(UNKNOWN_KEY_SECONDS)
        assert not await logs_in(keys, clock, tokens[0])
        assert endpoint.answers == 2


class Scripted:
    """Fault model: each request is answered as the script says; afterwards as its last element."""

    def __init__(self, *script: bytes | Exception) -> None:
        self.script, self.asked_at = list(script), list[float]()
        self.clock = ManualClock()

    async def fetch(self, url: str) -> bytes:
        self.asked_at.append(self.clock.monotonic() - 1000)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextlib.asynccontextmanager
async def running(scripted: Scripted) -> AsyncIterator[FetchedKeys]:
    keys = FetchedKeys(settings("https://issuer/keys"), scripted.clock, scripted.fetch)
    task = asyncio.create_task(keys.run())
    try:
        yield keys
    finally:
        task.cancel()


async def test_the_keys_are_renewed_in_the_background() -> None:
    issuer = Issuer("one")
    scripted = Scripted(issuer.key_set())
    async with running(scripted) as keys:
        await scripted.clock.advance(2 * REFRESH_MS / 1000)
        assert scripted.asked_at == [0, 60, 120]
        assert await logs_in(keys, scripted.clock, issuer.token("one", scripted.clock))
        assert len(scripted.asked_at) == 3, "a login does not wait for a request"


@pytest.mark.parametrize("failure", [OSError("away"), TimeoutError(), b"no json", b'{"keys": []}', b"[]", b"{}"])
async def test_failures_are_tried_again_with_pauses_that_double(
    failure: bytes | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer("one")
    scripted = Scripted(*[failure] * 5, issuer.key_set())
    async with running(scripted) as keys:
        await scripted.clock.advance(2)
        assert [round(at, 1) for at in scripted.asked_at] == [0, 0.1, 0.3, 0.7, 1.1, 1.5]
        assert "not refreshed" in caplog.text
        assert await logs_in(keys, scripted.clock, issuer.token("one", scripted.clock))


async def test_keys_that_cannot_be_renewed_stay_in_use() -> None:
    issuer = Issuer("one")
    scripted = Scripted(issuer.key_set(), OSError("away"))
    async with running(scripted) as keys:
        await scripted.clock.advance(3 * REFRESH_MS / 1000)
        assert len(scripted.asked_at) > 3
        assert await logs_in(keys, scripted.clock, issuer.token("one", scripted.clock))


async def test_what_is_no_answer_of_the_named_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, Issuer("one"), monkeypatch) as endpoint:
        assert await fetch(endpoint.url) == endpoint.issuer.key_set()
        with pytest.raises(ValueError, match="status 302"):
            await fetch(endpoint.url.replace("/keys", "/elsewhere"))
        endpoint.status = 500
        with pytest.raises(OSError, match="500"):
            await fetch(endpoint.url)
        endpoint.status, endpoint.body = 200, b" " * (LARGEST_BYTES + 1)
        with pytest.raises(ValueError, match="more than"):
            await fetch(endpoint.url)
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(OSError, match="certificate"):
            await fetch(endpoint.url)


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, issuer, path = ManualClock(), Issuer("one"), tmp_path / "keys.json"
    path.write_bytes(issuer.key_set())
    keys = token_keys(settings(f"file://{path}"), clock)
    assert await logs_in(keys, clock, issuer.token("one", clock))
    issuer.add("two")
    path.write_bytes(issuer.key_set())
    clock.jump(LOOK_SECONDS)
    assert await logs_in(keys, clock, issuer.token("two", clock))
    path.write_bytes(b"half a fi")
    clock.jump(LOOK_SECONDS)
    assert await logs_in(keys, clock, issuer.token("two", clock)), "the earlier ones stay in use"
    assert "not reloaded" in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"keys": []}'])
def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    path: Any = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="no JSON Web Key Set"):
        token_keys(settings(f"file://{path}"), ManualClock())


def test_keys_in_clear_are_refused() -> None:
    with pytest.raises(ConfigError, match="https://host/path"):
        settings("http://issuer/keys")
