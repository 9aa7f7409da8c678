"""One `headrace agent` as a child process of a benchmark: its address, its metrics, its processor time.

Invariant: leaving the context ends the process, by its id.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

STOP_SECONDS = 60


class AgentChild:
    """Ready for clients once entered. `kafka`: host:port. `log`: where its log lines go."""

    def __init__(
        self, settings: Mapping[str, object], log: Path, module: Sequence[str] = ("headrace.cli.main",)
    ) -> None:
        """`module`: what is started, with the words before `agent`."""
        own = {"listeners": "PLAINTEXT://127.0.0.1:0", "http.port": 0}
        self._log = log
        self._command = [sys.executable, "-m", *module, "agent", *flags({**own, **settings})]
        self.kafka = ""
        self._http = ""

    def __enter__(self) -> AgentChild:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.match(r"ready node=\d+ kafka=(\S+) http=(\S+)", line):
                self.kafka, self._http = match[1], match[2]
                return self
        raise RuntimeError(f"agent ended with status {self._process.wait()} before it was ready")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def metrics(self) -> str:
        """Return what it reports now."""
        with urllib.request.urlopen(f"http://{self._http}/metrics", timeout=60) as response:
            text: bytes = response.read()
        return text.decode()

    def cpu_seconds(self) -> float:
        """Processor time of all its threads since its start."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def flags(settings: Mapping[str, object]) -> list[str]:
    """Settings as command line flags."""
    return [part for name, value in settings.items() for part in (f"--{name.replace('.', '-')}", str(value))]
