"""Emulators of Azure Blob Storage and Google Cloud Storage for tests, each in a separate process if it is installed.

Fault model: none here (tests/scripted_http.py breaks things on purpose). Azurite checks signatures, the CRC-64 of a
body and conditions; fake-gcs-server checks the CRC32C of a body and conditions, but no identity. Neither
throttles.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import ContainerClient

from headrace.config.free_ports import free_ports
from tests.tools import AZURITE, FAKE_GCS, why_missing

ACCOUNT, CONTAINER, GCS_BUCKET = "devstoreaccount1", "headrace-contract", "headrace-contract"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of every Azurite, which its documentation names."""
IN_MEMORY = "--inMemoryPersistence"


def azurite_command(directory: Path, port: int, options: Sequence[str] = ()) -> list[str]:
    """The server on 127.0.0.1, with its data in `directory`."""
    place = [] if IN_MEMORY in options else ["--location", str(directory)]
    return [
        "node", str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--skipApiVersionCheck",
        "--disableTelemetry", *place, *options,
    ]  # fmt: skip


def fake_gcs_command(port: int, *options: str) -> list[str]:
    """The server on 127.0.0.1."""
    return [
        str(FAKE_GCS), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port),
        "-public-host", f"127.0.0.1:{port}", "-log-level", "error", *options,
    ]  # fmt: skip


@contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    """The server, until the end of the block."""
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        for _ in range(1_200):
            with socket.socket() as probe:
                if server.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        yield
    finally:
        server.terminate()
        server.wait(timeout=300)


@contextmanager
def running_azurite(directory: Path, options: Sequence[str] = (), host: str = "http://127.0.0.1") -> Iterator[str]:
    """Azurite without containers; yields the URL of its account."""
    (port,) = free_ports(1)
    data = directory / "data"
    data.mkdir()
    with running(azurite_command(data, port, options), port, directory / "log"):
        yield f"{host}:{port}/{ACCOUNT}"


def container_client(url: str, container: str = CONTAINER, certificate: Path | None = None) -> ContainerClient:
    """Microsoft's client of a container of Azurite."""
    credential = AzureNamedKeyCredential(ACCOUNT, KEY)
    return ContainerClient(url, container, credential=credential, connection_verify=str(certificate or "") or True)


def create_container(url: str, container: str = CONTAINER, certificate: Path | None = None) -> None:
    """Create a container of Azurite."""
    with container_client(url, container, certificate) as client:
        client.create_container()


@pytest.fixture(scope="session")
def azurite_url() -> Iterator[str]:
    """URL of the account of an Azurite with an empty container CONTAINER; skips when it is not installed."""
    if reason := why_missing("azurite"):
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-azurite-") as folder,
        running_azurite(Path(folder), [IN_MEMORY]) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AZURE_STORAGE_KEY", KEY)
        create_container(url)
        yield url


@contextmanager
def running_fake_gcs(directory: Path) -> Iterator[str]:
    """fake-gcs-server with an empty bucket GCS_BUCKET; yields its URL."""
    (port,) = free_ports(1)
    data = directory / "data"
    (data / GCS_BUCKET).mkdir(parents=True)
    with running(fake_gcs_command(port, "-filesystem-root", str(data)), port, directory / "log"):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def fake_gcs_url() -> Iterator[str]:
    """URL of fake-gcs-server with an empty bucket GCS_BUCKET; skips when it is not installed."""
    if reason := why_missing("fake-gcs-server"):
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-gcs-") as folder,
        running_fake_gcs(Path(folder)) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        yield url
