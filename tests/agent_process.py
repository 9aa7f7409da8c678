"""`headrace agent` as a child process that tests may stop, resume and kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from confluent_kafka.admin import AdminClient

from headrace.cli.children import fork_agent, load_code
from headrace.cli.main import main
from headrace.metastore.postgres.formatted import formatted_cluster_id

LOADED_BY_TESTS = "tests.loaded_schemas"
SECONDS_MAX = 300
"""Far beyond what anything here takes, even on a machine that stalls for a while."""


def format_storage(settings: Mapping[str, object], *more: str) -> list[str]:
    """Do the same as an operator would, on the migrated database: keep its cluster id. Returns the settings as flags;
    `more`: flags of `headrace storage format` alone.
    """
    flags = [f"--{name.replace('.', '-')}={value}" for name, value in settings.items()]
    cluster_id = formatted_cluster_id(str(settings["metastore.url"]))
    assert cluster_id is not None
    assert main(["storage", "format", "--ignore-formatted", "--cluster-id", cluster_id, *flags, *more]) == 0
    return flags


class Forked:
    """The part of subprocess.Popen that AgentUnderTest uses, of a process that the fork server made."""

    def __init__(self, words: Sequence[str], output: int, errors: int = 2) -> None:
        load_code([LOADED_BY_TESTS])
        self._process = fork_agent(words, output, errors=errors)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("agent", timeout or 0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


@contextmanager
def running_agent(words: Sequence[str], errors: Path | None = None) -> Iterator[tuple[Forked, dict[str, str]]]:
    """`headrace agent` with these words, from loaded code, and the fields of its ready line. `errors`: a file for its
    log, else this process's."""
    reading, writing = os.pipe()
    with ExitStack() as stack:
        log = 2 if errors is None else stack.enter_context(errors.open("w")).fileno()
        process = Forked(words, writing, log)
        os.close(writing)
        output = stack.enter_context(open(reading))  # closed at the end: a full pipe would stop the agent
        try:
            line = output.readline()
            assert line.startswith("ready "), line or (errors and errors.read_text())
            yield process, dict(re.findall(r"(\w+)=(\S+)", line))
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)


def ended_agent(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What `headrace agent` with these words, from loaded code, says until it ends by itself."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        status = Forked(words, output.fileno(), errors.fileno()).wait(SECONDS_MAX)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(words), status, output.read(), errors.read())


class AgentUnderTest:
    """Ready for clients once the context is entered; leaving it ends the process."""

    def __init__(
        self,
        settings: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        errors: Path | None = None,
    ) -> None:
        """`environment`: of a new interpreter. None: as `headrace dev`, from code that is loaded already. `errors`: a
        file for the log of an agent from loaded code, else this process's.
        """
        self._environment = environment
        self._errors = errors
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('.', '-')}", str(value))]
        kafka = () if "listeners" in settings else ("--listeners", "PLAINTEXT://127.0.0.1:0")
        self._words = [*kafka, "--http-port", "0", *flags]
        self.node_id = 0
        self.kafka = ""
        self.http = ""

    def __enter__(self) -> AgentUnderTest:
        reading, writing = os.pipe()
        self._process = self._forked(writing) if self._environment is None else self._started(writing)
        os.close(writing)
        self._output = open(reading)  # closed at the end: a full pipe would stop the agent
        for line in self._output:
            if match := re.match(r"ready node=(\d+) kafka=(\S+) http=(\S+)", line):
                self.node_id, self.kafka, self.http = int(match[1]), match[2], match[3]
                return self
        self._output.close()
        raise RuntimeError(f"agent ended with status {self._process.wait(SECONDS_MAX)} before it was ready")

    def _forked(self, output: int) -> Forked:
        if self._errors is None:
            return Forked(self._words, output)
        with self._errors.open("a") as log:
            return Forked(self._words, output, log.fileno())

    def _started(self, output: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headrace.cli.main", "agent", *self._words]
        return subprocess.Popen(command, stdout=output, stdin=subprocess.DEVNULL, env=self._environment)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        self._output.close()

    @property
    def process_id(self) -> int:
        """Process id of the agent."""
        return self._process.pid

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels; 0 without any."""
        lines = re.findall(rf"^{name}(?:\{{.*\}})? .*$", self.page("metrics")[1], re.MULTILINE)
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))

    def readyz(self) -> tuple[int, str]:
        """Return the status and the text of /readyz."""
        return self.page("readyz")

    def page(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page of its HTTP port."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/{path}", timeout=SECONDS_MAX) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def stop(self) -> int:
        """SIGTERM; the exit status after the drain."""
        self._process.terminate()
        return self._process.wait(SECONDS_MAX)

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self._process.pid, signal.SIGCONT)


def by_command(settings: Mapping[str, object]) -> AgentUnderTest:
    """Return an agent that starts as an operator starts it: `headrace agent` in a new interpreter."""
    return AgentUnderTest(settings, dict(os.environ))


def until_told(agents: Sequence[AgentUnderTest], topic: str) -> None:
    """Return when each agent lists all these agents and the topic for clients.

    Metadata does not wait for the log: an agent may learn of a new neighbour or topic a moment later.
    """
    wanted = {agent.node_id for agent in agents}
    until = time.monotonic() + SECONDS_MAX
    for agent in agents:
        admin = AdminClient({"bootstrap.servers": agent.kafka})
        while True:
            told = admin.list_topics(timeout=SECONDS_MAX)
            if wanted <= told.brokers.keys() and topic in told.topics:
                break
            assert time.monotonic() < until, (agent.node_id, told.brokers, told.topics)
            time.sleep(0.02)
