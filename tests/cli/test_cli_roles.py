"""Roles together and apart, in real processes: who listens where, who is active, who takes over."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

from headrace.cli.main import main
from headrace.protocol.client.transport import ask, client_config
from tests.agent_process import SECONDS_MAX, Forked, ended_agent, format_storage, running_agent

Controller = tuple[Forked, dict[str, str]]
LEASE_MS = 1_000


@pytest.fixture
def flags(metastore_url: str, tmp_path: Path) -> list[str]:
    """Return what every process of a test is started with, on formatted storage."""
    places = {"metastore.url": metastore_url, "bucket": tmp_path.as_uri()}
    return [*format_storage(places), "--http-port", "0", "--log-level", "warning"]


def _running(flags: list[str], *more: str) -> AbstractContextManager[tuple[Forked, dict[str, str]]]:
    """An agent, and the addresses of its ready line."""
    return running_agent([*flags, *more])


@contextmanager
def _compactor(flags: list[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The same of a compactor."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "compactor", *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), line
        yield process, dict(re.findall(r"(\w+)=(\S+)", line))
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)
        process.stdout.close()  # type: ignore[union-attr]


def _controller(node_id: int) -> list[str]:
    listening = ["--listeners", "CONTROLLER://127.0.0.1:0", "--controller-listener-names", "CONTROLLER"]
    lease = ["--controller-lease-ms", str(LEASE_MS)]
    return ["--process-roles", "controller", "--node-id", str(node_id), *listening, *lease]


def _status(addresses: dict[str, str]) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{addresses['http']}/v1/status", timeout=SECONDS_MAX) as response:
        found: dict[str, object] = json.load(response)
        return found


def _metrics(addresses: dict[str, str]) -> str:
    with urllib.request.urlopen(f"http://{addresses['http']}/metrics", timeout=SECONDS_MAX) as response:
        text: str = response.read().decode()
        return text


def _unregister(address: str) -> ErrorCode:
    answer = ask(
        client_config(address, None), UnregisterBrokerRequest(broker_id=BrokerId(99)), UnregisterBrokerResponse
    )
    code: ErrorCode = answer.error_code
    return code


def _until(holds: Callable[[], bool]) -> float:
    """Seconds until it does."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < SECONDS_MAX
        time.sleep(0.05)
    return time.monotonic() - began


def _active_first(pair: Sequence[Controller]) -> Sequence[Controller]:
    """The active one and its standby, once both say so.

    Their lease is short: on a machine that stalls for a moment the role may move at any time.
    """
    found: Sequence[Controller] = ()

    def divided() -> bool:
        nonlocal found
        found = sorted(pair, key=lambda controller: not _status(controller[1])["active"])
        answers = [_unregister(addresses["controller"]) for _, addresses in found]
        return answers == [ErrorCode.broker_id_not_registered, ErrorCode.not_controller]

    _until(divided)
    return found


@pytest.mark.requirement("C15")
def test_controllers_run_separately_and_a_killed_one_is_replaced(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with _running(flags, *_controller(101)) as one, _running(flags, *_controller(102)) as two:
        _active_first([one, two])
        with _running(flags, "--process-roles", "broker", "--listeners", "PLAINTEXT://127.0.0.1:0") as (_, agent):
            shown = ["shell", "-C", agent["kafka"], "ls", "/brokers"]
            assert main(shown) == 0
            assert capsys.readouterr().out.splitlines()[-1:] == [agent["node"]], "controllers are no brokers"
        (active, _), (_, standby) = _active_first([one, two])
        active.kill()
        active.wait(SECONDS_MAX)
        taken_over = _until(lambda: _unregister(standby["controller"]) is ErrorCode.broker_id_not_registered)
        print(f"\ncontroller taken over after {taken_over:.2f}s (lease {LEASE_MS / 1000:.0f}s)")
        _until(lambda: bool(_status(standby)["active"]))


@pytest.mark.requirement("C15", "C17")
def test_both_roles_in_one_process_listen_apart(flags: list[str]) -> None:
    both = ["--listeners", "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "--controller-listener-names"]
    with _running(flags, *both, "CONTROLLER", "--node-id", "5") as (_, addresses):
        assert addresses["node"] == "5"
        _until(lambda: _unregister(addresses["kafka"]) is ErrorCode.broker_id_not_registered)  # once it is active


@pytest.mark.requirement("C15")
def test_a_compactor_runs_alone_or_in_an_agent(flags: list[str]) -> None:
    with _compactor(flags) as (alone, addresses):
        assert _status(addresses)["roles"] == ["compactor"]
        beside = ["--process-roles", "broker,controller,compactor", "--listeners", "PLAINTEXT://127.0.0.1:0"]
        with _running(flags, *beside) as (agent, both):
            _until(lambda: "headrace_compaction_waiting_files" in _metrics(both))
            agent.terminate()
            assert agent.wait(SECONDS_MAX) == 0
        alone.send_signal(signal.SIGTERM)
        assert alone.wait(SECONDS_MAX) == 0


@pytest.mark.requirement("C16", "C17")
def test_a_node_id_in_use_keeps_a_second_process_out_until_its_time_is_up(flags: list[str]) -> None:
    """It says so in one line per attempt."""
    own = [*flags, "--listeners", "PLAINTEXT://127.0.0.1:0", "--node-id", "5"]
    with _running(own) as (first, _):
        second = ended_agent([*own, "--initial-broker-registration-timeout-ms", "500"])
        assert second.returncode == 1
        lines = second.stderr.splitlines()
        attempts = [line for line in lines if "joining the cluster failed" in line]
        assert attempts
        assert all("node id is in use by another incarnation: node_id=5" in line for line in attempts)
        assert lines[-1].startswith("error: ")
        assert "Traceback" not in second.stderr
        assert first.poll() is None
        with _running([*flags, "--listeners", "PLAINTEXT://127.0.0.1:0"]) as (_, leased):
            assert leased["node"] != "5"


@pytest.mark.requirement("C17")
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--process-roles", "controller"], "node.id is not set"),
        (["--listeners", "SSL://127.0.0.1:0"], "listener SSL uses SSL and has no key"),
    ],
)
def test_what_cannot_be_started_says_why(
    more: list[str], reason: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", *flags, *more]) == 1
    assert reason in capsys.readouterr().err
