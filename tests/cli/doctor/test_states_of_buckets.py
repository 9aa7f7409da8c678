"""The doctor on a bucket with wrong keys or rights, with another clock, or with a full disk.

Fault model: a real S3 server with accounts and bucket policies, which refuses one action; a server on loopback that
answers as S3 does to an expired token and to a wrong clock; a file system of a few megabytes.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import aioboto3
import boto3
import pytest

from headrace.cli.doctor import bucket
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from load.self_signed import write_certificate
from tests.cli.doctor.world import Line, ShiftedClock, lines
from tests.fixtures_s3 import ACCESS_KEY, BUCKET, NO_SERVER, find_versitygw, running_server
from tests.scripted_http import Exchange, ScriptedServer
from tests.torture.small_disk import SmallDisk, why_missing

USER, USER_SECRET = "agents", "agents-secret"
SESSIONS: dict[tuple[str, str], Any] = {}
TakeKeys = Callable[[str, str], None]
EVERY = ("s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:ListBucket")


@pytest.fixture(scope="module")
def endpoint(aws_credentials: None) -> Iterator[str]:
    """A real server with an account that may do what the bucket's policy says."""
    program = find_versitygw()
    if program is None:
        pytest.skip(NO_SERVER)
    with tempfile.TemporaryDirectory(prefix="headrace-s3-") as name:
        accounts = Path(name) / "accounts"
        accounts.mkdir()
        options = ("--iam-dir", str(accounts), "--iam-cache-disable", "--user", f"{USER}:{USER_SECRET}")
        with running_server(program, Path(name), options) as port:
            url = f"http://127.0.0.1:{port}"
            owner(url).create_bucket(Bucket=BUCKET)
            yield url


@pytest.fixture
def take_keys(monkeypatch: pytest.MonkeyPatch) -> TakeKeys:
    """Let the doctor find these keys, as a process that was started with them."""

    def take(access_key: str, secret_key: str) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret_key)
        session = SESSIONS.setdefault((access_key, secret_key), aioboto3.session.Session())  # it remembers its keys
        monkeypatch.setattr(aioboto3, "Session", lambda: session)

    return take


def owner(url: str) -> Any:
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1")


def allow(url: str, *actions: str) -> None:
    on_bucket = [action for action in actions if action == "s3:ListBucket"]
    on_objects = [action for action in actions if action != "s3:ListBucket"]
    statements = [
        {"Effect": "Allow", "Principal": {"AWS": [USER]}, "Action": allowed, "Resource": resource}
        for allowed, resource in (
            (on_bucket, f"arn:aws:s3:::{BUCKET}"),
            (on_objects, f"arn:aws:s3:::{BUCKET}/*"),
        )
        if allowed
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    owner(url).put_bucket_policy(Bucket=BUCKET, Policy=policy)


async def examined(url: str, clock: SystemClock | None = None) -> dict[str, Line]:
    settings = Settings(bucket=f"s3://{BUCKET}/logs", s3_endpoint=url, s3_region="us-east-1", s3_path_style=True)
    return lines(await bucket.examine(settings, clock or SystemClock(), random.Random(5)))


@pytest.mark.parametrize(
    ("denied", "check"),
    [("s3:PutObject", "put"), ("s3:DeleteObject", "delete"), ("s3:ListBucket", "list"), ("s3:GetObject", "get")],
)
async def test_keys_without_one_right(endpoint: str, take_keys: TakeKeys, denied: str, check: str) -> None:
    allow(endpoint, *(action for action in EVERY if action != denied))
    take_keys(USER, USER_SECRET)
    found = await examined(endpoint)
    level, told, to_do = found[check]
    assert (level, denied in str(to_do)) == ("bad", True), (told, to_do)
    for other in {"put", "list", "delete"} & found.keys() - {check}:
        assert found[other][0] == "ok", (other, found[other])
    assert found["clock"][0] == "ok"


async def test_keys_that_were_revoked(endpoint: str, take_keys: TakeKeys) -> None:
    take_keys("AKIAREVOKED", "secret")
    level, told, to_do = (await examined(endpoint))["put"]
    assert (level, "status=403" in told or "status=404" in told) == ("bad", True)
    assert str(to_do).startswith("the access key is not known or was revoked"), told


@pytest.mark.slow
async def test_a_wrong_secret_key(endpoint: str, take_keys: TakeKeys) -> None:
    take_keys(ACCESS_KEY, "another")
    level, _, to_do = (await examined(endpoint))["put"]
    assert (level, to_do) == ("bad", "correct the secret key (AWS_SECRET_ACCESS_KEY)")


def refusing_all(status: int, code: str, ahead_s: float = 0.0) -> Any:
    """Refuse as S3 does, with the Date of another clock."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.read_body()
        date = formatdate(SystemClock().wall_ms() / 1000 + ahead_s, usegmt=True)
        body = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
        await exchange.answer(status, body, {"Date": date})

    return [refuse] * 20


async def test_a_session_token_that_expired(aws_credentials: None) -> None:
    async with ScriptedServer(refusing_all(400, "ExpiredToken")) as server:
        level, told, to_do = (await examined(server.url))["put"]
    assert (level, "code=ExpiredToken" in told) == ("bad", True)
    assert str(to_do).startswith("renew the session token")


async def test_a_clock_that_s3_refuses(aws_credentials: None) -> None:
    async with ScriptedServer(refusing_all(403, "RequestTimeTooSkewed", 1_200)) as server:
        found = await examined(server.url)
    assert (found["put"][0], "set this machine's clock" in str(found["put"][2])) == ("bad", True)
    level, told, _ = found["clock"]
    assert level == "bad"
    assert "this machine's clock is 1200 s behind the store's" in told or "1199 s behind" in told


async def test_a_clock_that_differs_from_the_stores(endpoint: str) -> None:
    level, told, to_do = (await examined(endpoint, ShiftedClock(300)))["clock"]
    assert (level, "s ahead of the store's" in told) == ("warn", True)
    assert "15 minutes" in str(to_do)


async def test_a_full_disk_of_a_directory(tmp_path: Path) -> None:
    if why_missing():
        pytest.skip("needs mkfs.ext4 and a loop device" if os.geteuid() == 0 else "needs root")
    with SmallDisk(tmp_path, 8 * 1024**2) as disk:
        settings = Settings(bucket=(disk.path / "bucket").as_uri())
        assert lines(await bucket.examine(settings, SystemClock(), random.Random(1)))["put"][0] == "ok"
        disk.fill()
        found = lines(await bucket.examine(settings, SystemClock(), random.Random(1)))
    assert (found["put"][0], "No space left on device" in found["put"][1]) == ("bad", True)
    assert str(found["put"][2]).startswith("make room on the disk")
    assert found["disk"][0] == "bad"


async def test_a_certificate_of_the_store_that_expired(aws_credentials: None, tmp_path: Path) -> None:
    program = find_versitygw()
    if program is None:
        pytest.skip(NO_SERVER)
    certificate, key = write_certificate(tmp_path, days_left=-3)
    with (
        pytest.MonkeyPatch.context() as patch,
        running_server(program, tmp_path, ("--cert", str(certificate), "--key", str(key))) as port,
    ):
        patch.setenv("AWS_CA_BUNDLE", str(certificate))
        found = await examined(f"https://127.0.0.1:{port}")
    level, told, to_do = found["certificate"]
    assert (level, f"127.0.0.1:{port} expired 3 days ago" in told, "renew it" in str(to_do)) == ("bad", True, True)
    level, told, to_do = found["put"]
    assert (level, "certificate has expired" in told, "renew the store's" in str(to_do)) == ("bad", True, True)
    assert found["rest"][0] == "unknown"
