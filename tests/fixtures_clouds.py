"""Emulators of Azure Blob Storage and Google Cloud Storage for tests, each in a separate process if it is installed.

Fault model: none here (tests/scripted_http.py breaks things on purpose). Azurite checks signatures, the CRC-64 of a
body and conditions; fake-gcs-server checks the CRC32C of a body and conditions, but no identity. Neither
throttles.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import ContainerClient

from headrace.config.declared import declared
from headrace.config.free_ports import free_ports
from headrace.config.load import load
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore
from tests.tools import AZURITE, FAKE_GCS, why_missing

ACCOUNT, CONTAINER, GCS_BUCKET = "devstoreaccount1", "headrace-contract", "headrace-contract"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of every Azurite, which its documentation names."""
IN_MEMORY = "--inMemoryPersistence"
KEYS = {"AZURE_STORAGE_KEY": KEY, "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"}
"""The environment of processes that reach an emulator by azure.endpoint or gcs.endpoint: nothing else asks for it."""


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


@pytest.fixture(scope="session")
def cloud_keys() -> Iterator[None]:
    """KEYS, for processes that start from now on."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            if name not in os.environ:  # an emulator may run already
                patch.setenv(name, value)
        yield


@dataclass(frozen=True, slots=True)
class CloudBucket:
    """An empty place on an emulator. `settings`, by their dotted names, reach it from processes that have KEYS."""

    settings: Mapping[str, str]

    @property
    def url(self) -> str:
        return self.settings["bucket"]

    @property
    def port(self) -> int:
        """The emulator's."""
        (endpoint,) = (value for name, value in self.settings.items() if name.endswith(".endpoint"))
        port = urlsplit(endpoint).port
        assert port is not None
        return port

    @property
    def flags(self) -> list[str]:
        """Return them for a command."""
        return [part for name, value in self.settings.items() for part in (f"--{name.replace('.', '-')}", value)]

    @property
    def environment(self) -> dict[str, str]:
        """Return them for a process, with KEYS."""
        return KEYS | {declared()[name].environment: value for name, value in self.settings.items()}

    def open(self) -> ObjectStore:
        """A store, under all decorators."""
        options = StoreOptions.of(load(environ={}, flags=self.settings))
        return open_store(self.url, options, clock=SystemClock(), rng=random.Random(1))

    def at(self, port: int) -> CloudBucket:
        """The same behind another port."""
        before, after = f"127.0.0.1:{self.port}", f"127.0.0.1:{port}"
        return CloudBucket({name: value.replace(before, after) for name, value in self.settings.items()})


ON_CLOUDS = [
    pytest.param(name, marks=[pytest.mark.slow, pytest.mark.requirement("X15")]) for name in ("azure", "google")
]
"""The names that bucket_of takes, as parameters of slow tests."""


def bucket_of(cloud: str, request: pytest.FixtureRequest) -> CloudBucket:
    """A new place; skips where the emulator is not installed. The test's folder knows azurite_url and fake_gcs_url."""
    if cloud == "azure":
        url = request.getfixturevalue("azurite_url")
        return CloudBucket({"bucket": f"az://{ACCOUNT}/{CONTAINER}/{uuid.uuid4()}", "azure.endpoint": url})
    url = request.getfixturevalue("fake_gcs_url")
    return CloudBucket({"bucket": f"gs://{GCS_BUCKET}/{uuid.uuid4()}", "gcs.endpoint": url})


@pytest.fixture(params=ON_CLOUDS)
def cloud_bucket(request: pytest.FixtureRequest) -> CloudBucket:
    """A new place on each emulator, for slow tests."""
    return bucket_of(request.param, request)
