"""The object store of a torture run as a process: an S3 API (versitygw, or moto's server where it is not installed), or
an emulator of Azure Blob Storage or of Google Cloud Storage.

Invariant: leaving the context ends the process that was started, by its id.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import boto3
import requests

from headrace.config.free_ports import free_ports
from tests.fixtures_clouds import (
    ACCOUNT,
    IN_MEMORY,
    KEY,
    azurite_command,
    container_client,
    create_container,
    fake_gcs_command,
)
from tests.tools import VERSITYGW

BUCKET = "torture"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "headrace-torture",
    "AWS_SECRET_ACCESS_KEY": "headrace-torture-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AZURE_STORAGE_KEY": KEY,
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",  # no tokens; gcs.endpoint has the address
}
ADDRESSES = {"s3": f"s3://{BUCKET}/run", "azure": f"az://{ACCOUNT}/{BUCKET}/run", "google": f"gs://{BUCKET}/run"}
_START_SECONDS = 60


class StoreServer:
    """Serves the empty bucket BUCKET on 127.0.0.1:`port`; `name` says which program it is."""

    name: str
    _command: list[str]

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self.port,) = free_ports(1)

    def __enter__(self) -> Self:
        environment = os.environ | {
            "ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        }
        with (self._directory / "store.log").open("wb") as log:
            self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)
        self._wait_until_ready()
        self._create_bucket()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()  # asked politely, it would wait for connections that are half open
        self._process.wait()

    def settings(self, port: int) -> dict[str, object]:
        """Of a process that reaches the server by this port."""
        raise NotImplementedError

    def object_names(self) -> set[str]:
        """Keys of everything in the bucket."""
        raise NotImplementedError

    def _create_bucket(self) -> None:
        raise NotImplementedError

    def _wait_until_ready(self) -> None:
        for _ in range(_START_SECONDS * 20):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        log = (self._directory / "store.log").read_text(errors="replace")
        raise RuntimeError(f"the object store did not start: {log}")


class S3Server(StoreServer):
    """versitygw, or moto."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        program = str(VERSITYGW) if VERSITYGW.exists() else None
        self.name = "versitygw" if program else "moto"
        if program:
            data, sidecar = directory / "s3-data", directory / "s3-sidecar"
            data.mkdir()
            sidecar.mkdir()
            address = f"127.0.0.1:{self.port}"
            self._command = [
                program, "--port", address, "--keep-alive", "--quiet", "posix", "--sidecar", str(sidecar), str(data)
            ]  # fmt: skip
        else:
            self._command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def settings(self, port: int) -> dict[str, object]:
        endpoint = f"http://127.0.0.1:{port}"
        return {"bucket": ADDRESSES["s3"], "s3.region": "us-east-1", "s3.path.style": True, "s3.endpoint": endpoint}

    def client(self) -> boto3.client:
        """Straight to the server, past the proxy."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )

    def object_names(self) -> set[str]:
        """Keys of everything in the bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return {item["Key"] for page in pages for item in page.get("Contents", [])}

    def _create_bucket(self) -> None:
        self.client().create_bucket(Bucket=BUCKET)


class AzureServer(StoreServer):
    """Azurite, with its objects in memory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.name = "Azurite"
        self._command = azurite_command(directory, self.port, [IN_MEMORY])

    def settings(self, port: int) -> dict[str, object]:
        return {"bucket": ADDRESSES["azure"], "azure.endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}"}

    def object_names(self) -> set[str]:
        with container_client(f"http://127.0.0.1:{self.port}/{ACCOUNT}", BUCKET) as client:
            return set(client.list_blob_names())

    def _create_bucket(self) -> None:
        create_container(f"http://127.0.0.1:{self.port}/{ACCOUNT}", BUCKET)


class GoogleServer(StoreServer):
    """fake-gcs-server, with its objects in memory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.name = "fake-gcs-server"
        self._command = fake_gcs_command(self.port, "-backend", "memory")
        self._api = f"http://127.0.0.1:{self.port}/storage/v1/b"

    def settings(self, port: int) -> dict[str, object]:
        return {"bucket": ADDRESSES["google"], "gcs.endpoint": f"http://127.0.0.1:{port}"}

    def object_names(self) -> set[str]:
        names, token = set(), ""
        while True:
            page = requests.get(
                f"{self._api}/{BUCKET}/o", {"pageToken": token, "maxResults": "1000"}, timeout=60
            ).json()
            names |= {item["name"] for item in page.get("items", ())}
            token = page.get("nextPageToken", "")
            if not token:
                return names

    def _create_bucket(self) -> None:
        requests.post(self._api, json={"name": BUCKET}, timeout=60).raise_for_status()


STORES: dict[str, type[StoreServer]] = {"s3": S3Server, "azure": AzureServer, "google": GoogleServer}
NEEDS = {"s3": "versitygw", "azure": "azurite", "google": "fake-gcs-server"}
"""The tool of each; S3's has a substitute."""
