"""S3 servers for tests: moto in a thread, and a real one in a separate process if it is installed.

Fault model: none here (tests/scripted_http.py breaks things on purpose). moto keeps objects in
memory and checks neither signatures nor checksums; versitygw and MinIO check both.
The names below DOMAIN resolve to 127.0.0.1 in this process only (loopback_names).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aioboto3
import boto3
import pytest

from headrace.config.free_ports import free_ports
from headrace.storage.clock import SystemClock
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from load.self_signed import write_certificate
from tests.loopback_names import sitecustomize
from tests.loopback_names.sitecustomize import DOMAIN
from tests.scripted_http import ScriptedServer
from tests.tools import VERSITYGW, why_missing

BUCKET = "headrace-contract"
DOTTED_BUCKET = "headrace.contract.dots"
REGION = "eu-central-2"
"""Region of the server behind https; not the default of any client."""
ACCESS_KEY, SECRET_KEY = "headrace-test", "headrace-test-secret"
NO_SERVER = "needs versitygw"
"""Or minio on PATH, or another program named in HEADRACE_TEST_S3_SERVER."""


@pytest.fixture(scope="session")
def aws_credentials() -> Iterator[None]:
    """The standard chain finds these, and asks no metadata service.

    All stores share one aioboto3 session, because each session parses S3's model: 50-100 ms.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.delenv("AWS_PROFILE", raising=False)
        own_session, shared = aioboto3.Session, aioboto3.Session()
        patch.setattr(aioboto3, "Session", lambda **given: own_session(**given) if given else shared)
        yield


@pytest.fixture(scope="session")
def moto_url(aws_credentials: None) -> Iterator[str]:
    """Endpoint of a moto server with an empty bucket BUCKET."""
    from moto.server import ThreadedMotoServer  # half a second, which most workers do not need

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    _create_bucket(f"http://{host}:{port}")
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def real_s3_url(aws_credentials: None) -> Iterator[str]:
    """Endpoint of a real server with an empty bucket BUCKET; skips when none is installed."""
    program = find_real_server()
    if program is None:
        pytest.skip(NO_SERVER)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-s3-") as directory,
        running_server(program, Path(directory), ()) as port,
    ):
        url = f"http://127.0.0.1:{port}"
        _create_bucket(url)
        yield url


@pytest.fixture(scope="session")
def s3_url(request: pytest.FixtureRequest) -> str:
    """Endpoint of the real server, or of moto's on a machine that has none."""
    url: str = request.getfixturevalue("real_s3_url" if find_real_server() else "moto_url")
    return url


@dataclass(frozen=True, slots=True)
class HttpsServer:
    """versitygw with a certificate: it serves both styles of addresses, and only requests for its region."""

    url: str
    certificate: Path
    """Certificate for AWS_CA_BUNDLE."""


@pytest.fixture(scope="session")
def https_server(aws_credentials: None) -> Iterator[HttpsServer]:
    """Yield the https server with empty buckets BUCKET and DOTTED_BUCKET, in REGION; skips when versitygw is not
    installed.
    """
    program = find_versitygw()
    if program is None:
        pytest.skip(NO_SERVER)
    with tempfile.TemporaryDirectory(prefix="headrace-s3-") as directory:
        certificate, key = write_certificate(Path(directory), [DOMAIN, f"*.{DOMAIN}"])
        options = ("--cert", certificate, "--key", key, "--region", REGION, "--virtual-domain", DOMAIN)
        with running_server(program, Path(directory), tuple(map(str, options))) as port:
            for bucket in (BUCKET, DOTTED_BUCKET):
                _create_bucket(f"https://127.0.0.1:{port}", bucket, REGION, str(certificate))
            yield HttpsServer(f"https://{DOMAIN}:{port}", certificate)


@pytest.fixture
def https_s3(https_server: HttpsServer, monkeypatch: pytest.MonkeyPatch) -> HttpsServer:
    """The server, trusted by this test's clients and found by its names."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(https_server.certificate))
    monkeypatch.setattr(socket, "getaddrinfo", sitecustomize.getaddrinfo)
    return https_server


@contextmanager
def running_server(program: str, directory: Path, options: Sequence[str]) -> Iterator[int]:
    """The server, with data in `directory`; the port it listens on."""
    (port,) = free_ports(1)  # versitygw takes port 0 but does not say which one it got
    environment = dict(os.environ, ROOT_ACCESS_KEY=ACCESS_KEY, ROOT_SECRET_KEY=SECRET_KEY)
    environment |= {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
    log = directory / "log"
    with log.open("wb") as output:
        command = _command(program, directory, port, options)
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, server, log)
        yield port
    finally:
        server.terminate()
        server.wait(timeout=300)


def find_versitygw() -> str | None:
    """Return the program to run, once it is installed; None if the run does without it."""
    return None if why_missing("versitygw") else str(VERSITYGW)


def find_real_server() -> str | None:
    """The program to run, or None."""
    if named := os.environ.get("HEADRACE_TEST_S3_SERVER"):
        return named
    return find_versitygw() or shutil.which("minio")


def _command(program: str, directory: Path, port: int, options: Sequence[str]) -> list[str]:
    data, sidecar = directory / "data", directory / "sidecar"
    data.mkdir()
    sidecar.mkdir()
    address = f"127.0.0.1:{port}"
    if "minio" in Path(program).name:
        return [program, "server", "--quiet", "--address", address, str(data)]
    gateway = [program, "--port", address, "--keep-alive", "--quiet", *options]
    return [*gateway, "posix", "--sidecar", str(sidecar), str(data)]


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1_200):
        if server.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")


def _create_bucket(url: str, bucket: str = BUCKET, region: str = "us-east-1", certificate: str | None = None) -> None:
    client = boto3.client("s3", endpoint_url=url, region_name=region, verify=certificate)
    if region == "us-east-1":
        client.create_bucket(Bucket=bucket)
    else:
        client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})


@asynccontextmanager
async def s3_on(server: ScriptedServer, **options: Any) -> AsyncIterator[S3Store]:
    """The same on a scripted server, closed at the end of the block."""
    store = s3_at(server.url, **options)
    try:
        yield store
    finally:
        await store.close()


def s3_at(url: str, *, request_timeout_s: float = 10.0, max_connections: int = 64) -> S3Store:
    """A separate store below prefix `pre` of bucket `bucket` on the server at `url`."""
    options = S3Options(
        bucket="bucket",
        prefix="pre",
        endpoint=url,
        region="us-east-1",
        path_style=True,
        max_connections=max_connections,
        request_timeout_s=request_timeout_s,
    )
    return S3Store(options, SystemClock())
