"""Postgres and an S3 server for the pods, outside the cluster as in production: at HOST, in no pod.

Place: host.py runs them for the time of all scenarios, so that a scenario can show what an uninstall leaves.
Invariant: leaving the context ends both.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import boto3
import psycopg
from botocore.exceptions import BotoCoreError, ClientError

from headrace.metastore.postgres.embedded import USER, EmbeddedPostgres
from tests.kubernetes.kubelet.network import HOST, POD_NETWORK, run
from tests.kubernetes.programs import program

BUCKET = "headrace"
ACCESS_KEY, SECRET_KEY = "headrace-test", "headrace-test-secret"
S3_PORT, POSTGRES_PORT = 7070, 5432
DATABASE, PASSWORD = "postgres", "p@ss:w/rd?#%24&+ =$(A)"
"""A password with characters that an address has only percent-encoded, and that a pod's spec could expand."""
START_S = 60.0


def metastore_url(password: str) -> str:
    """The whole address, for pods."""
    return f"postgresql://{USER}:{quote(password, safe='')}@{HOST}:{POSTGRES_PORT}/{DATABASE}"


class Stores:
    """`metastore_url`, its parts and `s3_url` are for pods."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._postgres = EmbeddedPostgres(folder / "postgres", fsync=False, tcp=True, password=PASSWORD)
        self.s3_url = f"http://{HOST}:{S3_PORT}"
        self.metastore_url = metastore_url(PASSWORD)
        self.metastore = {
            "host": HOST, "port": str(POSTGRES_PORT), "username": USER, "password": PASSWORD, "dbname": DATABASE,
        }  # fmt: skip
        """Named as CloudNativePG names them."""

    @property
    def postgres_port(self) -> int:
        """The port to which connections of pods are forwarded."""
        return self._postgres.port

    def __enter__(self) -> Stores:
        self._postgres.start()
        self._admit_pods()
        self._start_s3()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._s3.kill()
        self._s3.wait()
        self._postgres.stop()

    def _admit_pods(self) -> None:
        """The embedded Postgres listens on 127.0.0.1 and admits only that: forward to it, and admit pods."""
        access = (self._folder / "postgres" / "pgdata").resolve() / "pg_hba.conf"
        with access.open("a") as file:
            for network in (POD_NETWORK, f"{HOST}/32"):
                file.write(f"host all {USER} {network} scram-sha-256\n")
        with psycopg.connect(self._postgres.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
        goal = ["-p", "tcp", "-d", HOST, "--dport", str(POSTGRES_PORT), "-j", "DNAT"]
        for chain in ("PREROUTING", "OUTPUT"):
            run(
                program("iptables"),
                "-t",
                "nat",
                "-I",
                chain,
                *goal,
                "--to-destination",
                f"127.0.0.1:{self._postgres.port}",
            )

    def _start_s3(self) -> None:
        data, sidecar = self._folder / "s3" / "data", self._folder / "s3" / "sidecar"
        data.mkdir(parents=True)
        sidecar.mkdir()
        command = [
            program("headrace-s3-server"), "--port", f"{HOST}:{S3_PORT}", "--keep-alive", "--quiet",
            "posix", "--sidecar", str(sidecar), str(data),
        ]  # fmt: skip
        keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY, "PATH": "/usr/bin:/bin"}
        with (self._folder / "s3.log").open("wb") as log:
            self._s3 = subprocess.Popen(command, env=keys, stdout=log, stderr=log)
        client = boto3.client(
            "s3", endpoint_url=self.s3_url, region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        )  # fmt: skip
        until = time.monotonic() + START_S
        while True:
            try:
                client.create_bucket(Bucket=BUCKET)
                return
            except (BotoCoreError, ClientError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
