"""`headrace top`: what the screen shows of samples, and one screen of a real cluster."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from headrace.cli.console.agent_metrics import ClientUse
from headrace.cli.console.samples import Sample, Samples
from headrace.cli.doctor.findings import Area
from headrace.cli.main import main
from headrace.cli.top import CLIENTS_MAX, NAME_CHARACTERS, PARTITIONS_MAX, Screen, amount, drawn
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.reports import JobCount
from tests.agent_process import AgentUnderTest, format_storage
from tests.kafka_clients import KafkaClients


def _text(screen: Screen) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(drawn(screen))
    return captured.get()


def _screen() -> Screen:
    samples = Samples()
    places = {("orders", partition): 100 for partition in range(9)}
    samples.add(Sample(0, 0.0, places, {}))
    later = {place: 100 + 50 * (place[1] + 1) for place in places}
    committed = {"billing": {("orders", partition): 90 for partition in range(9)}, "idle": {("orders", 0): 150}}
    samples.add(Sample(10_000, 10.0, later, committed))
    return Screen("kafka:9092", sample=samples.last, point=samples.points[-1], rate_of=samples.rate)


def test_rates_lags_and_the_partitions_furthest_behind() -> None:
    text = _text(_screen())
    assert "records/s 225" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["orders", "225", "-", "-"] in lines
    assert ["billing", "2.34K"] in lines
    assert ["idle", "0"] in lines
    behind = [line for line in lines if line[1:3] == ["in", "billing"]]
    assert behind[0] == ["orders-8", "in", "billing", "460"], "the furthest first"
    assert len(behind) == PARTITIONS_MAX
    assert ["and", str(9 - PARTITIONS_MAX), "more"] in lines


def test_the_clients_that_use_most_come_first() -> None:
    screen = _screen()
    screen.clients = {("", ""): ClientUse(9.0, 9e9), ("alice", "x" * 256): ClientUse(1.0, 5.0, 0.0, 2_000.0)}
    screen.clients |= {(f"u{number}", "[/x]"): ClientUse(7.0, 100.0 + number) for number in range(CLIENTS_MAX)}
    lines = _text(screen).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("CLIENTS"))
    assert lines[first + 1].split() == ["alice", "x" * NAME_CHARACTERS, "1", "5", "2K"], "bytes of both directions"
    assert lines[first + 2].split() == [f"u{CLIENTS_MAX - 1}", "[/x]", "7", "105", "0"]
    assert lines[first + CLIENTS_MAX + 1].split() == ["and", "2", "more"]


def test_jobs_and_what_an_operator_should_change() -> None:
    screen = _screen()
    screen.jobs = [JobCount("plan", JobState.WAITING, 3, 90_000), JobCount("plan", JobState.GIVEN_UP, 1, 0)]
    screen.findings = [Area("cluster").ok("agents", "two"), Area("postgres").warn("backup", "none", "take one")]
    screen.problems = ["agent 3 does not answer"]
    text = _text(screen)
    assert ["plan", "3", "0", "1", "90"] in [line.split() for line in text.splitlines()]
    assert "warn postgres backup: none" in text
    assert "agent 3 does not answer" in text
    assert "ok cluster" not in text


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.0, "0"), (999.4, "999"), (1_234_567.0, "1.23M"), (5e15, "5000T")]
)
def test_amounts(value: float | None, shown: str) -> None:
    assert amount(value) == shown


def test_one_screen_of_a_real_cluster(
    metastore_url: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, object] = {
        "metastore.url": metastore_url, "bucket": f"file://{tmp_path_factory.mktemp('bucket')}",
        "process.roles": "broker,controller,compactor", "log.level": "error",
    }  # fmt: skip
    format_storage(settings)
    with AgentUnderTest(settings) as agent:
        KafkaClients(agent.kafka).create("orders", 2)
        KafkaClients(agent.kafka).produce("orders", [b"x"])
        capsys.readouterr()
        words = ["top", "-b", agent.kafka, "--agent-http", f"http://{agent.http}", "--metastore-url", metastore_url]
        assert main([*words, "--once", "--seconds", "0.1"]) == 0
        text = capsys.readouterr().out
        assert main(["clients", "--agent-http", f"http://{agent.http}", "--seconds", "0.1", "--json"]) == 0
        clients = {(row["user"], row["client_id"]): row for row in json.loads(capsys.readouterr().out)}
    assert {"rdkafka", "headrace-cli"} & {client_id for _, client_id in clients}
    assert clients["all others", ""]["others"] is True
    assert "CLIENTS" in text
    assert f"{agent.node_id} {agent.kafka}  active controller" in text
    assert "orders" in text
    assert "JOBS" in text


def test_a_cluster_that_is_away_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-b", "127.0.0.1:1", "--once", "--seconds", "0.1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--seconds", "nan", "--seconds"),
        ("--seconds", "0", "--seconds"),
        ("--agent-http-token", "/no/file", "/no/file"),
    ],
)
def test_wrong_flags_of_clients_are_named(flag: str, value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clients", "--agent-http", "http://127.0.0.1:1", flag, value]) == 1
    assert said in capsys.readouterr().err


def test_an_agent_that_is_away_is_an_error_of_clients(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clients", "--agent-http", "http://127.0.0.1:1", "--seconds", "0.1", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == []
    assert captured.err.count("127.0.0.1:1") == 1
