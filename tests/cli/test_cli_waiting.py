"""A process that starts while Postgres is away: it waits in every role, and can be stopped meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.cli.process import open_process as module
from headrace.cli.process import serve
from headrace.cli.process.open_process import open_metastore
from headrace.cli.process.shell import RETRY_SECONDS
from headrace.config.settings import Settings
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.storage.cluster_properties import random_cluster_id, write_cluster_id
from headrace.storage.errors import InvalidError, ThrottledError, UnavailableError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange
from tests.agent_process import format_storage
from tests.cli.process.test_health import HealthWorld
from tests.manual_clock import ManualClock
from tests.torture.proxy import FaultProxy

_MAIN = "from headrace.cli.main import main; import sys; sys.exit(main())"
TRIES_OFTEN = f"from headrace.cli.process import shell; shell.RETRY_SECONDS = 0.1; {_MAIN}"
"""`headrace` with a shorter pause between attempts."""
TIME_FLIES = f"""
import asyncio
from headrace.cli.process import open_process
from headrace.storage.clock import SystemClock

class Skipping(SystemClock):
    seconds = 0.0

    def monotonic(self):
        return self.seconds

    async def sleep(self, seconds):
        self.seconds += seconds
        await asyncio.sleep(0)

open_process.SystemClock = Skipping
{_MAIN}
"""
"""`headrace`, with a clock on which only pauses take time, and no real one."""


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
async def test_connecting_is_tried_until_the_registration_timeout(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, settings = ManualClock(), Settings(initial_broker_registration_timeout_ms=20_000)
    monkeypatch.setattr(module, "PostgresMetastore", absent := Absent(5))
    assert await clock.run(open_metastore(settings, clock)) == "opened"
    monkeypatch.setattr(module, "PostgresMetastore", absent := Absent(10**9))
    started = clock.monotonic()
    with pytest.raises(UnavailableError):
        await clock.run(open_metastore(settings, clock))
    assert absent.attempts == 20 / RETRY_SECONDS
    assert clock.monotonic() - started < 20
    left = re.findall(r"metastore not available, trying again: seconds_left=(\d+) ", caplog.text)
    assert left[-9:] == ["20", "18", "16", "14", "12", "10", "8", "6", "4"], "how long it will try"


@pytest.mark.requirement("C17")
@pytest.mark.parametrize("command", ["agent", pytest.param("compactor", marks=pytest.mark.slow)])
def test_a_process_that_cannot_register_in_time_exits(command: str, tmp_path: Path) -> None:
    """initial.broker.registration.timeout.ms: the process ends by itself, with status 1 and the reason."""
    ports = ["--http-port", "0", *(["--listeners", "PLAINTEXT://127.0.0.1:0"] if command == "agent" else [])]
    url = "postgresql://headrace@127.0.0.1:1/nobody"
    given = [*ports, "--metastore-url", url, "--bucket", tmp_path.as_uri()]
    patience = ["--initial-broker-registration-timeout-ms", str(round(2_500 * RETRY_SECONDS))]
    ended = subprocess.run(
        [sys.executable, "-c", TIME_FLIES, command, *given, *patience],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("error: ")
    assert ended.stderr.count("metastore not available, trying again") == 1, "lines that repeat are left out"


class ThrottledBucket(MemoryStore):
    """Fault model: S3 answers 503 SlowDown to the first `times` requests for an object."""

    def __init__(self, times: int) -> None:
        super().__init__(ManualClock())
        self.left = times

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.left -= 1
        if self.left >= 0:
            raise ThrottledError("status=503 code=SlowDown")
        return await super().get(key, byte_range)


@pytest.mark.requirement("C17")
async def test_a_bucket_that_answers_503_is_waited_for() -> None:
    world, timeout = HealthWorld(), Settings().initial_broker_registration_timeout_ms / 1000
    world.shell._store = bucket = ThrottledBucket(5)
    world.metastore.cluster_id = random_cluster_id(random.Random(1))
    await write_cluster_id(bucket, world.metastore.cluster_id)
    await world.clock.run(world.shell.require_formatted_storage())
    bucket.left, started = 10**9, world.clock.monotonic()
    with pytest.raises(ThrottledError):
        await world.clock.run(world.shell.require_formatted_storage())
    assert timeout - RETRY_SECONDS <= world.clock.monotonic() - started < timeout
    await world.shell.stop()


@pytest.mark.requirement("C17")
async def test_the_life_is_checked_again_until_the_bucket_answers() -> None:
    world = HealthWorld()
    failures = [ThrottledError("status=503 code=SlowDown")] * 3

    async def start() -> None:
        if failures:
            raise failures.pop()

    world.life.start = start  # type: ignore[method-assign]
    await world.clock.run(world.shell.start())
    assert failures == []
    assert (await world.get("/readyz"))[0] == 200
    await world.shell.stop()


async def test_a_signal_ends_the_wait_for_the_bucket() -> None:
    """Connections are closed before the process ends."""
    stopped = asyncio.Event()

    class Waiting:
        async def require_formatted_storage(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

        async def stop(self) -> None:
            stopped.set()

    async def opened(settings: Settings) -> Any:
        return Waiting()

    assert await serve._serve(Settings(), opened, None) == 0
    assert stopped.is_set()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


@pytest.mark.requirement("C17")
async def test_a_wrong_address_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Absent):
        async def open(self, url: str, settings: Settings) -> str:
            raise InvalidError("not a url")

    monkeypatch.setattr(module, "PostgresMetastore", Wrong(0))
    with pytest.raises(InvalidError):
        await open_metastore(Settings(), ManualClock())


@pytest.mark.parametrize(
    ("comes_back", "command"),
    [
        (True, "agent"),
        pytest.param(False, "compactor", marks=pytest.mark.slow),
        pytest.param(True, "compactor", marks=pytest.mark.slow),
        pytest.param(False, "agent", marks=pytest.mark.slow),
    ],
)
async def test_a_process_waits_for_postgres_and_stops_on_a_signal(
    command: str, postgres_server: EmbeddedPostgres, metastore_url: str, tmp_path: Path, *, comes_back: bool
) -> None:
    bucket = ["--bucket", tmp_path.as_uri()]
    await asyncio.to_thread(format_storage, {"metastore.url": metastore_url, "bucket": bucket[1]})
    proxy = FaultProxy(random.Random(1))
    await proxy.start()
    url = postgres_server.tcp_url(urlsplit(metastore_url).path.lstrip("/"), proxy.port)
    ports = ["--http-port", "0", *(["--listeners", "PLAINTEXT://127.0.0.1:0"] if command == "agent" else [])]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TRIES_OFTEN, command, "--metastore-url", url, *bucket, *ports,
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
