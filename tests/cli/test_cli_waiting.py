"""A process that starts while Postgres is away: it waits in every role, and can be stopped meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headrace.cli.main import main
from headrace.cli.process import open_process as module
from headrace.cli.process.open_process import RETRY_SECONDS, open_metastore
from headrace.config.settings import Settings
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.storage.errors import InvalidError, UnavailableError
from load.torture.proxy import FaultProxy
from tests.manual_clock import ManualClock


class Absent:
    """Fault model: Postgres does not answer the first `times` attempts."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.attempts = 0

    async def open(self, url: str, settings: Settings) -> str:
        self.attempts += 1
        if self.left:
            self.left -= 1
            raise UnavailableError("refused")
        return "opened"


@pytest.mark.requirement("C17")
async def test_connecting_is_tried_until_the_registration_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, settings = ManualClock(), Settings(initial_broker_registration_timeout_ms=20_000)
    monkeypatch.setattr(module, "PostgresMetastore", absent := Absent(5))
    assert await clock.run(open_metastore(settings, clock)) == "opened"
    monkeypatch.setattr(module, "PostgresMetastore", absent := Absent(10**9))
    started = clock.monotonic()
    with pytest.raises(UnavailableError):
        await clock.run(open_metastore(settings, clock))
    assert absent.attempts == 20 / RETRY_SECONDS
    assert clock.monotonic() - started < 20


@pytest.mark.requirement("C17")
@pytest.mark.parametrize("command", ["agent", "compactor"])
def test_a_process_that_cannot_register_in_time_exits(command: str, tmp_path: Path) -> None:
    """initial.broker.registration.timeout.ms: the process ends by itself, with status 1 and the reason."""
    ports = ["--http-port", "0", *(["--kafka-port", "0"] if command == "agent" else [])]
    url = "postgresql://headrace@127.0.0.1:1/nobody"
    given = [*ports, "--metastore-url", url, "--bucket", tmp_path.as_uri()]
    patience = ["--initial-broker-registration-timeout-ms", str(round(2_500 * RETRY_SECONDS))]
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", command, *given, *patience],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("error: ")
    assert ended.stderr.count("metastore not available, trying again") == 1, "lines that repeat are left out"


@pytest.mark.requirement("C17")
async def test_a_wrong_address_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Absent):
        async def open(self, url: str, settings: Settings) -> str:
            raise InvalidError("not a url")

    monkeypatch.setattr(module, "PostgresMetastore", Wrong(0))
    with pytest.raises(InvalidError):
        await open_metastore(Settings(), ManualClock())


@pytest.mark.parametrize("command", ["agent", "compactor"])
@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_process_waits_for_postgres_and_stops_on_a_signal(
    command: str, postgres_server: EmbeddedPostgres, metastore_url: str, tmp_path: Path, *, comes_back: bool
) -> None:
    cluster_id = formatted_cluster_id(metastore_url)
    assert cluster_id is not None
    bucket = ["--bucket", tmp_path.as_uri()]
    words = ["storage", "format", "-g", "-t", cluster_id, "--metastore-url", metastore_url, *bucket]
    assert await asyncio.to_thread(main, words) == 0
    proxy = FaultProxy(random.Random(1))
    await proxy.start()
    url = postgres_server.tcp_url(urlsplit(metastore_url).path.lstrip("/"), proxy.port)
    ports = ["--http-port", "0", *(["--kafka-port", "0"] if command == "agent" else [])]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.cli.main", command, "--metastore-url", url, *bucket, *ports,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        while b"metastore not available" not in (line := await process.stderr.readline()):
            assert line, "the process ended"
        if comes_back:
            proxy.target = postgres_server.port
            assert (await process.stdout.readline()).startswith(b"ready ")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        await proxy.close()
