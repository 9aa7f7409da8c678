"""Tokens for Azure and Google: who is asked for one, when it is renewed, and what an identity that fails means.

A server on loopback speaks the endpoints that Microsoft's and Google's libraries ask: instance metadata (managed
identities; service accounts of machines and of GKE's workloads) and the exchange of a federated token. Azurite reads
the claims of a token, over https; it checks no signature, because there is no real identity here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from azure.identity._internal import utils as azure_renewals
from google.auth.compute_engine import _metadata

from headrace.storage.clock import SystemClock
from headrace.storage.errors import HeadraceError, InvalidError, UnavailableError
from headrace.storage.objects.azure import AzureStore
from headrace.storage.objects.azure_client import AzureOptions
from headrace.storage.objects.google import GoogleStore
from headrace.storage.objects.google_client import GoogleOptions
from headrace.storage.objects.http_requests import RENEW_BEFORE_S, RENEWAL_PAUSE_S, SharedToken, Token
from load.self_signed import write_certificate
from tests.fixtures_clouds import CONTAINER, IN_MEMORY, create_container, running_azurite
from tests.manual_clock import ManualClock
from tests.scripted_http import Exchange, ScriptedServer
from tests.storage.objects.clouds import azure_accepts, google_accepts
from tests.tools import why_missing

pytestmark = pytest.mark.requirement("X15")

SECONDS = 250
"""Life of a token: azure-identity asks for another one in the last 300 s, SharedToken in the last RENEW_BEFORE_S."""
VARIABLES = (
    "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "IDENTITY_ENDPOINT",
)  # fmt: skip


class Identity:
    """Grants a token with another number each time; `status`: of a refusal."""

    def __init__(self) -> None:
        self.granted: list[str] = []
        self.status = 200
        self.make: Callable[[int], str] = "token-{}".format

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.read_body()
        if "token" not in exchange.target:  # Google asks first whether the machine has an identity
            account = {"email": "agent@project.iam.gserviceaccount.com", "scopes": ["devstorage"], "aliases": []}
            headers = {"Metadata-Flavor": "Google", "Content-Type": "application/json"}
            await exchange.answer(200, json.dumps(account).encode(), headers=headers)
            return
        if self.status != 200:
            await exchange.answer(self.status, b'{"error": "refused", "error_description": "no such identity"}')
            return
        self.granted.append(self.make(len(self.granted) + 1))
        told = {
            "access_token": self.granted[-1],
            "expires_in": SECONDS,
            "expires_on": str(int(time.time()) + SECONDS),
            "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "resource": "https://storage.azure.com",
        }
        headers = {"Content-Type": "application/json", "Metadata-Flavor": "Google"}
        await exchange.answer(200, json.dumps(told).encode(), headers=headers)


@pytest.fixture(autouse=True)
def no_other_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no command-line tool of a cloud is asked


@pytest.fixture
def identity() -> Identity:
    return Identity()


@pytest.fixture
async def issuer(identity: Identity) -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer([identity] * 30) as server:
        yield server


def managed_identity(issuer: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine of Azure. The library asks again at once, not after its 30 s."""
    monkeypatch.setattr(azure_renewals, "DEFAULT_TOKEN_REFRESH_RETRY_DELAY", 0)
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", issuer.url)


def machine_of_google(issuer: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine, or a pod with a service account."""
    host = urlsplit(issuer.url).netloc
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    monkeypatch.setenv("GCE_METADATA_IP", host)


def federated(issuer: ScriptedServer, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A machine outside of Google: a token of another issuer is exchanged."""
    (folder / "subject").write_text("federated token")
    audience = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x"
    account = {
        "type": "external_account",
        "audience": audience,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{issuer.url}/v1/token",
        "credential_source": {"file": str(folder / "subject")},
    }
    (folder / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "account.json"))


def azure_store(url: str, clock: ManualClock | SystemClock) -> AzureStore:
    return AzureStore(AzureOptions(account="account1", container="bucket", endpoint=url), clock)


def google_store(url: str, clock: ManualClock | SystemClock) -> GoogleStore:
    return GoogleStore(GoogleOptions(bucket="bucket", endpoint=url), clock)


def now() -> ManualClock:
    """The libraries have the machine's time."""
    return ManualClock(start_ms=round(time.time() * 1000))


@pytest.mark.parametrize("source", ["managed identity", "machine of Google", "federated"])
async def test_a_token_goes_with_each_request_and_is_renewed_before_it_expires(
    source: str, issuer: ScriptedServer, identity: Identity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    match source:
        case "managed identity":
            managed_identity(issuer, monkeypatch)
        case "machine of Google":
            machine_of_google(issuer, monkeypatch)
        case _:
            federated(issuer, monkeypatch, tmp_path)
    clock = now()
    accepts = azure_accepts if source == "managed identity" else google_accepts
    async with ScriptedServer([accepts] * 5) as bucket:
        store = azure_store(bucket.url, clock) if source == "managed identity" else google_store(bucket.url, clock)
        await store.put("k", b"1")
        await store.put("k", b"2")
        clock.jump(SECONDS - RENEW_BEFORE_S + 5)
        await store.put("k", b"3")  # with the old token, while the new one is asked for
        if (renewal := store._client._identity._token._renewal) is not None:
            await renewal
        await store.put("k", b"4")
        await store.close()
        used = [each.headers["authorization"] for each in bucket.exchanges]
    first, second = identity.granted
    assert used == [f"Bearer {first}"] * 3 + [f"Bearer {second}"]
    if source == "federated":
        assert parse_qs(issuer.exchanges[0].body.decode())["subject_token"] == ["federated token"]


@pytest.mark.parametrize("cloud", ["azure", "google"])
async def test_a_token_that_was_good_and_is_refused_is_replaced(
    cloud: str, issuer: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a key of the service account was rotated. A token that is refused at once is a wrong identity."""
    (managed_identity if cloud == "azure" else machine_of_google)(issuer, monkeypatch)
    clock, accepts = now(), azure_accepts if cloud == "azure" else google_accepts

    async def unauthorized(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.answer(401, b"{}")

    async with ScriptedServer([accepts, unauthorized, accepts, unauthorized]) as bucket:
        store = azure_store(bucket.url, clock) if cloud == "azure" else google_store(bucket.url, clock)
        await store.put("k", b"1")
        clock.jump(61)
        with pytest.raises(UnavailableError):
            await store.put("k", b"2")
        await store.put("k", b"2")
        with pytest.raises(InvalidError, match=r"check=the (service account|identity)"):
            await store.put("k", b"3")
        await store.close()
        assert [each.headers["authorization"][-1] for each in bucket.exchanges] == ["1", "1", "2", "2"]


@pytest.mark.parametrize("cloud", ["azure", "google"])
async def test_an_error_without_an_identity_says_what_to_check(
    cloud: str, issuer: ScriptedServer, identity: Identity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    identity.status = 400
    if cloud == "azure":
        managed_identity(issuer, monkeypatch)
        store: AzureStore | GoogleStore = azure_store("http://127.0.0.1:9", SystemClock())
    else:
        federated(issuer, monkeypatch, tmp_path)
        store = google_store("http://127.0.0.1:9", SystemClock())
    with pytest.raises(InvalidError, match=r"check=the (workload or managed identity|service account)"):
        await store.put("k", b"x")
    await store.close()


async def test_a_bad_account_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "not base64!")
    store = azure_store("http://127.0.0.1:9", SystemClock())
    with pytest.raises(InvalidError, match="check=AZURE_STORAGE_KEY"):
        await store.put("k", b"x")
    await store.close()


@pytest.fixture
def azurite_with_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Azurite over https, which takes a token if its claims are right."""
    if reason := why_missing("azurite"):
        pytest.skip(reason)
    monkeypatch.undo()  # the server needs PATH
    certificate, key = write_certificate(tmp_path)
    options = [IN_MEMORY, "--oauth", "basic", "--cert", str(certificate), "--key", str(key)]
    with running_azurite(tmp_path, options, "https://127.0.0.1") as url:
        create_container(url, certificate=certificate)
        with pytest.MonkeyPatch.context() as patch:
            for name in VARIABLES:
                patch.delenv(name, raising=False)
            patch.setenv("SSL_CERT_FILE", str(certificate))
            yield url


@pytest.mark.slow
async def test_azurite_takes_the_token_of_a_managed_identity(
    azurite_with_tokens: str, issuer: ScriptedServer, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def token(number: int, audience: str = "https://storage.azure.com") -> str:
        at = int(time.time())
        tenant = "ab1f708d-50f6-404c-a006-d71b2ac7a606"
        claims = {"aud": audience, "iss": f"https://sts.windows.net/{tenant}/", "iat": at, "nbf": at, "exp": at + 3600}
        return jwt.encode({**claims, "jti": str(number)}, "a secret that nothing here checks, 32 bytes long")

    identity.make = token
    managed_identity(issuer, monkeypatch)
    options = AzureOptions(account="devstoreaccount1", container=CONTAINER, endpoint=azurite_with_tokens)
    store = AzureStore(options, SystemClock())
    await store.put("k", b"body")
    assert await store.get("k") == b"body"
    assert [info.key async for info in store.list_objects()] == ["k"]
    assert await store.delete_many(["k", "other"]) == ["k", "other"]
    await store.close()

    identity.make = lambda number: token(number, "https://elsewhere.example")
    other = AzureStore(options, SystemClock())
    with pytest.raises(InvalidError, match="check="):
        await other.put("k", b"body")
    await other.close()


class Source:
    """Answers of an identity, in order; the last one again and again. Each waits until `go` is set."""

    def __init__(self, clock: ManualClock, *answers: float | HeadraceError) -> None:
        self._clock = clock
        self._answers = list(answers)
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self) -> Token:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        number = self.asked
        await self.go.wait()
        if isinstance(answer, HeadraceError):
            raise answer
        return Token(f"token-{number}", self._clock.wall_ms() / 1000 + answer)


async def test_all_who_wait_share_one_question_and_none_ends_it_for_the_others() -> None:
    clock = ManualClock()
    source = Source(clock, 3600.0)
    source.go.clear()
    token = SharedToken(source, clock)
    waiting = [asyncio.create_task(token.value()) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting[0].cancel()
    source.go.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == ["token-1"] * 4
    assert source.asked == 1


async def test_a_renewal_that_fails_leaves_the_old_token_and_is_tried_again_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    source = Source(clock, 3600.0, InvalidError("no such identity"), UnavailableError("down"), 3600.0)
    token = SharedToken(source, clock)
    assert await token.value() == "token-1"
    clock.jump(3600 - RENEW_BEFORE_S + 1)
    for asked in (2, 2, 2):
        assert await token.value() == "token-1"
        await turns()
        assert source.asked == asked
    clock.jump(RENEWAL_PAUSE_S)
    assert await token.value() == "token-1"
    await turns()
    assert (source.asked, caplog.text.count("token not renewed")) == (3, 2)
    clock.jump(RENEWAL_PAUSE_S)
    assert await token.value() == "token-1"
    await turns()
    assert await token.value() == "token-4"


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_identity_that_fails_later_is_an_outage_and_at_first_a_mistake() -> None:
    clock = ManualClock()
    with pytest.raises(InvalidError):
        await SharedToken(Source(clock, InvalidError("no such identity")), clock).value()
    token = SharedToken(Source(clock, 3600.0, InvalidError("no such identity")), clock)
    await token.value()
    clock.jump(3601)
    with pytest.raises(UnavailableError, match="no such identity"):
        await token.value()


async def test_an_identity_that_brings_the_same_token_is_not_asked_by_each_request() -> None:
    clock = ManualClock()
    source = Source(clock, RENEW_BEFORE_S - 60)
    token = SharedToken(source, clock)
    for _ in range(20):
        await token.value()
        await turns()
    assert source.asked == 1
    clock.jump(RENEWAL_PAUSE_S)
    for _ in range(20):
        await token.value()
        await turns()
    assert source.asked == 2


async def test_a_closed_store_ends_the_question() -> None:
    clock = ManualClock()
    source = Source(clock, 3600.0)
    source.go.clear()
    token = SharedToken(source, clock)
    waiting = asyncio.create_task(token.value())
    await turns()
    await token.close()
    with pytest.raises(UnavailableError, match="closed"):
        await waiting
