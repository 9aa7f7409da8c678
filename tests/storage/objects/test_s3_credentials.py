"""Temporary credentials: from the environment, from a container's endpoint, and for a web identity.

Stand-ins on loopback for the endpoints and for S3 (versitygw's session tokens need an identity provider on a public
address): each request's signature is computed again, so it proves which secret, token and region signed it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import aioboto3
import aioboto3.session
import pytest

from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from tests.scripted_http import Exchange, ScriptedServer, Step, refusing

REGION = "eu-central-2"
ROLE = "arn:aws:iam::123456789012:role/headrace"
STS_ANSWER = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}\
</SecretAccessKey><SessionToken>{token}</SessionToken><Expiration>{expiration}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/headrace/x</Arn><AssumedRoleId>A:x</AssumedRoleId>\
</AssumedRoleUser></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
STS_REFUSAL = (
    "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"
)


class Lease(NamedTuple):
    """Credentials for a time."""

    number: int
    seconds: int = 3_600

    @property
    def fields(self) -> dict[str, str]:
        expiration = datetime.now(UTC) + timedelta(seconds=self.seconds)
        names = {name: f"{name}-{self.number}" for name in ("key", "secret", "token")}
        return names | {"expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ")}


async def grant_to_container(exchange: Exchange, lease: Lease) -> None:
    """Do the same as the endpoint of ECS tasks and of EKS Pod Identity answers."""
    given = lease.fields
    names = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "token", "Expiration": "expiration"}
    await exchange.answer(body=json.dumps({name: given[field] for name, field in names.items()}).encode())


async def grant_to_web_identity(exchange: Exchange, lease: Lease) -> None:
    """Do the same as STS answers AssumeRoleWithWebIdentity."""
    await exchange.read_body()
    await exchange.answer(body=STS_ANSWER.format(**lease.fields).encode(), headers={"Content-Type": "text/xml"})


GRANTS = {"container": grant_to_container, "web identity": grant_to_web_identity}


@pytest.fixture
async def s3() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def issuer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedServer]:
    """The endpoint that grants credentials; no other source has any."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(aioboto3, "Session", aioboto3.session.Session)
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("the-pods-identity")
    return path


@pytest.fixture(params=GRANTS)
def source(
    request: pytest.FixtureRequest, issuer: ScriptedServer, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return where the environment says that credentials come from."""
    use(request.param, issuer, token_file, monkeypatch)
    return str(request.param)


def use(source: str, issuer: ScriptedServer, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if source == "container":
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{issuer.url}/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "the-pods-secret")
    else:
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token_file))
        monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", issuer.url)


def store_at(server: ScriptedServer) -> S3Store:
    options = S3Options(bucket="bucket", endpoint=server.url, region=REGION, path_style=True)
    return S3Store(options, SystemClock())


async def put(server: ScriptedServer, *keys: str) -> None:
    store = store_at(server)
    try:
        for key in keys:
            await store.put(key, b"body")
    finally:
        await store.close()


def assert_signed(exchange: Exchange, number: int) -> None:
    """By key, secret and token of this number, for REGION (AWS Signature Version 4)."""
    given = exchange.headers
    assert given["x-amz-security-token"] == f"token-{number}"
    scheme, credential, names, signature = given["authorization"].replace(",", "").split()
    scope = credential.removeprefix(f"Credential=key-{number}/")
    date, *_ = parts = scope.split("/")
    assert (scheme, parts) == ("AWS4-HMAC-SHA256", [date, REGION, "s3", "aws4_request"])
    signed = names.removeprefix("SignedHeaders=").split(";")
    assert "x-amz-security-token" in signed
    lines = [exchange.method, exchange.target, "", *(f"{name}:{given[name]}" for name in signed)]
    canonical = "\n".join([*lines, "", ";".join(signed), given["x-amz-content-sha256"]])
    text = "\n".join([scheme, given["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = reduce(lambda key, part: hmac.digest(key, part.encode(), "sha256"), parts, f"AWS4secret-{number}".encode())
    assert signature == f"Signature={hmac.digest(key, text.encode(), 'sha256').hex()}"


async def test_a_session_token_of_the_environment_is_sent_and_signed(
    s3: ScriptedServer, issuer: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-1")
    await put(s3, "a")
    assert_signed(s3.exchanges[0], 1)
    assert issuer.exchanges == []


async def test_granted_credentials_sign_all_requests_of_their_time(
    s3: ScriptedServer, issuer: ScriptedServer, source: str
) -> None:
    issuer.steps = [partial(GRANTS[source], lease=Lease(1))]
    await put(s3, "a", "b")
    assert len(s3.exchanges) == 2
    for exchange in s3.exchanges:
        assert_signed(exchange, 1)
    (asked,) = issuer.exchanges
    if source == "container":
        assert (asked.target, asked.headers["authorization"]) == ("/credentials", "the-pods-secret")
    else:
        sent = parse_qs(asked.body.decode())
        assert sent["Action"] == ["AssumeRoleWithWebIdentity"]
        assert (sent["RoleArn"], sent["WebIdentityToken"]) == ([ROLE], ["the-pods-identity"])
        assert "authorization" not in asked.headers


async def test_credentials_are_renewed_before_they_expire(
    s3: ScriptedServer, issuer: ScriptedServer, source: str
) -> None:
    issuer.steps = [partial(GRANTS[source], lease=Lease(1, seconds=30)), partial(GRANTS[source], lease=Lease(2))]
    store = store_at(s3)
    await store.put("a", b"body")
    await store.put("b", b"body")
    await store.put("c", b"body")
    await store.close()
    assert len(issuer.exchanges) == 2
    for exchange, number in zip(s3.exchanges[1:], (2, 2), strict=True):
        assert_signed(exchange, number)


async def test_a_container_endpoint_that_fails_is_asked_again_by_the_next_request(
    s3: ScriptedServer, issuer: ScriptedServer, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent to the bucket, so the put may be repeated."""
    use("container", issuer, token_file, monkeypatch)
    failing: list[Step] = [refusing(500, "InternalError")] * 3  # botocore asks three times
    issuer.steps = [*failing, partial(grant_to_container, lease=Lease(1))]
    store = store_at(s3)
    with pytest.raises(UnavailableError):
        await store.put("a", b"body")
    assert s3.exchanges == []
    await store.put("a", b"body")
    await store.close()
    assert_signed(s3.exchanges[0], 1)


@pytest.mark.parametrize("code", ["InvalidIdentityToken", "ExpiredTokenException", "AccessDenied"])
async def test_a_web_identity_that_sts_refuses_is_named(
    s3: ScriptedServer, issuer: ScriptedServer, token_file: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    use("web identity", issuer, token_file, monkeypatch)

    async def refuse(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.answer(400, STS_REFUSAL.format(code=code).encode(), {"Content-Type": "text/xml"})

    issuer.steps = [refuse]
    with pytest.raises(InvalidError, match=f"code={code} check=the AWS role"):
        await put(s3, "a")
    assert s3.exchanges == []


async def test_a_token_that_the_bucket_calls_expired_is_named(
    s3: ScriptedServer, issuer: ScriptedServer, source: str
) -> None:
    issuer.steps = [partial(GRANTS[source], lease=Lease(1))]
    s3.steps = [refusing(400, "ExpiredToken")]
    with pytest.raises(InvalidError, match="check=the AWS session token"):
        await put(s3, "a")
