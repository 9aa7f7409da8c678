"""`headrace agent --processes 2`: real processes, a real client, one page of metrics, one drain."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from headrace.config.free_ports import free_ports
from tests.agent_process import format_storage
from tests.kafka_clients import KafkaClients

SECONDS_MAX = 300
RECORDS = 200


class Command:
    """The running command."""

    def __init__(self, process: subprocess.Popen[str], line: str, errors: Path) -> None:
        self.process, self._errors = process, errors
        fields = dict(re.findall(r"(\w+)=(\S+)", line))
        self.nodes, self.kafka = fields["node"].split(","), fields["kafka"].split(",")
        self._http = fields["http"]

    def children(self) -> list[int]:
        """The agents: forks of a child that holds their code."""
        return [pid for server in _children(self.process.pid) for pid in _children(server)]

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self._http}{path}", timeout=300) as response:
            return str(response.read().decode())

    def sum_of(self, series: str) -> dict[tuple[tuple[str, str], ...], float]:
        return {
            tuple(sample.labels.items()): sample.value
            for family in text_string_to_metric_families(self.page("/metrics"))
            for sample in family.samples
            if sample.name == series
        }

    def errors(self) -> str:
        return self._errors.read_text()


@pytest.fixture
def flags(metastore_url: str, tmp_path: Path) -> list[str]:
    (tmp_path / "bucket").mkdir()
    settings = {"metastore.url": metastore_url, "bucket": (tmp_path / "bucket").as_uri(), "linger.ms": 10}
    return format_storage(settings)


@contextmanager
def _running(flags: list[str], errors: Path) -> Iterator[Command]:
    port = _free_range()
    own = ["--processes", "2", "--listeners", f"PLAINTEXT://127.0.0.1:{port}", "--http-port", "0", "--node-id", "11"]
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "agent", *own, *flags],
            stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready "), errors.read_text()
        yield Command(process, line, errors)
    finally:
        if process.poll() is None:
            process.kill()  # the agents get SIGTERM from the kernel
        process.wait(SECONDS_MAX)
        process.stdout.close()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _free_range() -> int:
    """A port that is free together with the next one, most likely also in a moment."""
    while True:
        (port,) = free_ports(1)
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port


def _until_gone(pids: list[int]) -> None:
    until = time.monotonic() + SECONDS_MAX
    while any(Path(f"/proc/{pid}/stat").exists() and _state(pid) != "Z" for pid in pids):
        assert time.monotonic() < until, pids
        time.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_clients_use_both_metrics_are_summed_and_a_signal_drains_both(flags: list[str], tmp_path: Path) -> None:
    with _running([*flags, "--store-retries", "4"], tmp_path / "errors") as command:
        assert command.nodes == ["11", "12"]
        first, second = (int(address.rpartition(":")[2]) for address in command.kafka)
        assert second == first + 1, "a range"
        body = json.loads(command.page("/readyz?verbose"))
        assert (body["status"], sorted(body["agents"])) == ("ready", ["11", "12"])

        clients = KafkaClients(command.kafka[0], {"linger.ms": 5})  # the first port leads to all
        clients.create("t", 8)
        clients.produce("t", range(RECORDS), 8)
        admin = AdminClient(clients.settings)
        until = time.monotonic() + SECONDS_MAX
        while {each.leader for each in admin.list_topics("t").topics["t"].partitions.values()} != {11, 12}:
            assert time.monotonic() < until, "the first agent has not heard of the second"
            time.sleep(0.02)
        assert len({m.value() for m in clients.read_in_group("t", RECORDS, "g")}) == RECORDS

        assert sum(command.sum_of("headrace_topic_received_records_total").values()) == RECORDS, "summed over both"
        states = command.sum_of("headrace_broker_state")
        assert states == {(("node_id", "11"),): 3.0, (("node_id", "12"),): 3.0}, "gauges are by node"

        agents = command.children()
        producer = Producer(clients.settings)
        producer.produce("t", b"last", partition=0)
        producer.poll(0)
        command.process.terminate()
        assert command.process.wait(SECONDS_MAX) == 0
        _until_gone(agents)
        lines = command.errors()
        for index, node in enumerate(command.nodes):
            assert re.search(rf"\[process={index} node_id={node}\] .* SHUTTING_DOWN -> NOT_RUNNING", lines), lines
        assert lines.count("setting goes: store.retries=4 applies") == 1, "said by the command, not by each agent"
        assert lines.count("setting: store.retries=4") == 2, "it applies"


@pytest.mark.slow
def test_an_agent_that_exits_takes_the_command_down_and_the_other_one_drains(flags: list[str], tmp_path: Path) -> None:
    with _running(flags, tmp_path / "errors") as command:
        dead, other = command.children()
        os.kill(dead, signal.SIGKILL)
        assert command.process.wait(SECONDS_MAX) == 1
        _until_gone([other])
        lines = command.errors()
        assert re.search(r"error: agent exited, the others drain and the command ends: node=1[12] status=-9", lines)
        assert len(re.findall("SHUTTING_DOWN -> NOT_RUNNING", lines)) == 1, "the other one left the cluster"


@pytest.mark.slow
def test_agents_end_with_their_command_and_a_silent_one_is_not_ready(flags: list[str], tmp_path: Path) -> None:
    with _running(flags, tmp_path / "errors") as command:
        agents = command.children()
        os.kill(agents[0], signal.SIGSTOP)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            command.page("/readyz")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            command.page("/metrics")  # never half of the counters
        os.kill(agents[0], signal.SIGCONT)
        command.process.kill()
        _until_gone(agents)


@pytest.mark.slow
def test_a_second_signal_ends_an_agent_that_does_not_drain(flags: list[str], tmp_path: Path) -> None:
    with _running(flags, tmp_path / "errors") as command:
        agents = command.children()
        os.kill(agents[0], signal.SIGSTOP)
        while command.process.poll() is None:  # two signals that come together count once
            command.process.terminate()
            time.sleep(0.1)
        _until_gone(agents)
