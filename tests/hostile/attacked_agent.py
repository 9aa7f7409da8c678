"""The agent that is attacked, and what is measured of it while it is: memory, and how long its loop stalls.

Memory is the resident set, sampled every 20 ms; a stall is the longest time in which a ping on one connection
(ApiVersions) was not answered. Both are read from outside, so that any version of Headrace can be measured.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from load.dev_server import DevServer
from tests.hostile.frames import request
from tests.torture.servers import STORES

_API_VERSIONS = 18
_SAMPLE_SECONDS = 0.02
PING_SECONDS_MAX = 60.0


class AttackedAgent:
    """`headrace dev` with one agent on an empty directory, or on an empty bucket of an object storage."""

    def __init__(
        self, checkout: Path | None = None, settings: Mapping[str, object] | None = None, store: str | None = None
    ) -> None:
        """`checkout` of the Headrace to be attacked; None: this one. `store`: one of STORES, which is started; this
        process's environment has its credentials. None: the bucket is a directory.
        """
        self.checkout = checkout
        self._place = tempfile.TemporaryDirectory(prefix="headrace-attack-", ignore_cleanup_errors=True)
        directory = Path(self._place.name)
        directory.chmod(0o711)
        self.directory = directory
        self.log = directory / "stderr.log"
        self._settings, self._store = dict(settings or {}), store
        self._started = ExitStack()
        self.storage: dict[str, object] = {}
        """Settings of the bucket, for further processes of the cluster."""

    def __enter__(self) -> AttackedAgent:
        with ExitStack() as stack:
            stack.callback(self._place.cleanup)
            if self._store:
                store = stack.enter_context(STORES[self._store](self.directory))
                self.storage = store.settings(store.port)
            settings = self._settings | self.storage
            server = DevServer(self.directory / "data", settings=settings, checkout=self.checkout, errors=self.log)
            self._server = stack.enter_context(server)
            self.storage = self.storage | {"bucket": server.bucket}
            self._started = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.__exit__(kind, error, trace)

    @property
    def bootstrap(self) -> str:
        return self._server.bootstrap

    @property
    def kafka(self) -> tuple[str, int]:
        """(host, port)."""
        host, _, port = self._server.agents[0].kafka.rpartition(":")
        return host, int(port)

    @property
    def http(self) -> tuple[str, int]:
        """(host, port)."""
        host, _, port = self._server.agents[0].http.rpartition(":")
        return host, int(port)

    @property
    def metastore_url(self) -> str:
        return self._server.metastore_url

    @property
    def storage_flags(self) -> list[str]:
        """The metastore and the bucket, for further processes of the cluster."""
        settings = {"metastore.url": self.metastore_url} | self.storage
        return [part for name, value in settings.items() for part in (f"--{name.replace('.', '-')}", str(value))]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of further processes of the attacked Headrace."""
        return self._server.environment

    @property
    def pid(self) -> int:
        """The process id of the agent."""
        return self._server.agents[0].pid

    def resident_bytes(self) -> int:
        """The agent's resident memory; 0 if it has ended."""
        with suppress(OSError):
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        return 0

    def is_alive(self) -> bool:
        """Return whether the agent's process runs."""
        return self.resident_bytes() > 0

    def descriptors(self) -> int:
        """Open files and sockets of the agent."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


class Watch:
    """Measures between entry and exit the highest memory and the longest stall."""

    def __init__(self, target: AttackedAgent) -> None:
        self._target = target
        self.idle_bytes = 0
        self.peak_bytes = 0
        self.stall_seconds = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Watch:
        self.idle_bytes = self.peak_bytes = self._target.resident_bytes()
        host, port = self._target.kafka
        self._streams = await asyncio.open_connection(host, port)
        self._tasks = [asyncio.create_task(self._sample()), asyncio.create_task(self._ping())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._streams[1].close()

    @property
    def grown_bytes(self) -> int:
        """Peak memory above what it was on entry."""
        return self.peak_bytes - self.idle_bytes

    async def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, self._target.resident_bytes())
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _ping(self) -> None:
        reader, writer = self._streams
        ping = request(_API_VERSIONS, 0, b"")
        while True:
            began = time.monotonic()
            writer.write(ping)
            try:
                async with asyncio.timeout(PING_SECONDS_MAX):
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    await reader.readexactly(size)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                self.stall_seconds = float("inf")
                return
            self.stall_seconds = max(self.stall_seconds, time.monotonic() - began)
            await asyncio.sleep(_SAMPLE_SECONDS)


def run_command(python: str, *words: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """`headrace WORDS` with that Python's Headrace."""
    command = [python, "-m", "headrace.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
