"""A real S3 API for the torture run: versitygw or MinIO when installed, else moto's server, as a process.

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

import boto3

from headrace.config.free_ports import free_ports
from tests.tools import VERSITYGW

BUCKET = "torture"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "headrace-torture",
    "AWS_SECRET_ACCESS_KEY": "headrace-torture-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server:
    """Serves the empty bucket BUCKET on 127.0.0.1:`port`; `name` says which program it is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self.port,) = free_ports(1)
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

    def __enter__(self) -> S3Server:
        keys = {
            "ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        }
        with (self._directory / "s3.log").open("wb") as log:
            self._process = subprocess.Popen(self._command, env=os.environ | keys, stdout=log, stderr=log)
        self._wait_until_ready()
        self.client().create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()  # asked politely, it would wait for connections that are half open
        self._process.wait()

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

    def _wait_until_ready(self) -> None:
        for _ in range(400):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"the S3 server did not start: {(self._directory / 's3.log').read_text(errors='replace')}")
