"""Find where tools are installed, and how an installer runs a command.

Place: under the installers of tests/tools/.
Invariant: nothing outside TOOLS changes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

TOOLS = Path(os.environ.get("HEADRACE_TEST_TOOLS", Path.home() / ".cache" / "headrace-test-tools"))
KAFKA_VERSION = "4.3.1"
"""Apache Kafka's server, tools and applications."""
KAFKA_CLIENT_VERSION = os.environ.get("HEADRACE_TEST_KAFKA_CLIENT", KAFKA_VERSION)
"""Kafka's Java client: the variable runs any test with another version."""


class InstallError(Exception):
    """An installer ended with an error; the message is the last line of its output."""


def digest(folder: Path) -> str:
    """A hash of the sources in this folder: part of the name of what is built, so that a change builds it again."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def run(*command: str, cwd: Path | None = None, **environment: str) -> None:
    """Run it to its end; InstallError unless it succeeds."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=3_600
    )
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        raise InstallError(lines[-1])
