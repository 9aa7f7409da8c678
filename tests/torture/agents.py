"""One `headrace agent` process behind its fault proxy: killed, stopped, started again.

Clients know the proxy only: the agent advertises the proxy's port. Each start is a new process under a
new incarnation, as a supervisor would make it; a start that fails is repeated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

from headrace.config.free_ports import free_ports
from load.agent_child import flags
from tests.torture.proxy import FaultProxy
from tests.torture.servers import CREDENTIALS

START_SECONDS = 120
"""Seconds of one attempt to start."""
PATIENCE_SECONDS = 240
"""Seconds to wait for an agent that does not start: its metastore and its bucket may be struck again and again
meanwhile.
"""
COUNTED = (
    "headrace_produce_duplicates_total",
    "headrace_produce_timed_out_total",
    "headrace_produce_commit_failures_total",
)


class ProxiedAgent:
    """`counters`: its metrics, as far as they were read before its processes ended."""

    def __init__(self, name: str, proxy: FaultProxy, settings: Mapping[str, object], log: Path) -> None:
        self.name = name
        self.proxy = proxy
        self.module: Sequence[str] = ("headrace.cli.main",)
        """What is started, with the words before `agent`."""
        self.starts = 0
        self.counters: Counter[str] = Counter()
        self._latest: Counter[str] = Counter()
        self._settings = settings
        self._log = log
        self._http_port = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self.proxy.port}"

    @property
    def ready_url(self) -> str:
        """The URL of its readiness, past the proxy."""
        return f"http://127.0.0.1:{self._http_port}/readyz"

    @property
    def pid(self) -> int:
        """The process id of the agent."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Return once it is ready for clients; RuntimeError when no attempt succeeds in a good while."""
        until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while asyncio.get_running_loop().time() < until:
            if await self._try_to_start():
                return
            await asyncio.sleep(0.5)
        raise RuntimeError(f"{self.name} does not start: {self._log.read_text(errors='replace')[-2000:]}")

    async def _try_to_start(self) -> bool:
        port, self._http_port = free_ports(2)
        own = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}", "http.port": self._http_port,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.proxy.port}",
        }  # fmt: skip
        process = self._process = await self._begin(flags({**self._settings, **own}))
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        except TimeoutError:
            process.kill()
            line = b""
        if not line.startswith(b"ready"):
            await process.wait()
            return False
        self.proxy.target = port
        self.starts += 1
        return True

    async def _begin(self, words: Sequence[str]) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self.module, "agent", *words,
                env=os.environ | CREDENTIALS, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )  # fmt: skip

    async def kill(self) -> None:
        """SIGKILL; clients are refused until the next start."""
        assert self._process is not None
        self.proxy.target = 0
        self._process.kill()
        await self._process.wait()
        self.counters += self._latest
        self._latest.clear()

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self) -> int:
        """SIGTERM if it was ever started; the exit status."""
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self.signal(signal.SIGCONT)
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 40)
            except TimeoutError:
                self._process.kill()
        return await self._process.wait()

    def read_metrics(self) -> dict[str, float]:
        """Every metric, summed over its labels; empty when it does not answer. Blocks for a second at most."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics", timeout=1) as response:
                text = response.read().decode()
        except (OSError, HTTPException):  # not there, stopped, or killed in the middle of its answer
            return {}
        samples: Counter[str] = Counter()
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")  # a label's value may have spaces
                samples[name.partition("{")[0]] += float(value)  # type: ignore[assignment]
        self._latest = Counter({name: int(samples[name]) for name in COUNTED})
        return dict(samples)

    @property
    def totals(self) -> Counter[str]:
        """COUNTED, over all its processes."""
        return self.counters + self._latest
