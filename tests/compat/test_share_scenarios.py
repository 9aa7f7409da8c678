"""Share groups in scenarios, on Apache Kafka 4.3 and on two agents: they answer the same except for documented rows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.compat.conftest import SETTINGS
from tests.compat.kafka_server import kafka_server
from tests.compat.share_scenarios import SCENARIOS, rows
from tests.compat.share_scenarios.differences import DOCUMENTED, DOCUMENTED_OF_CONSUMERS
from tests.compat.share_scenarios.server import Server
from tests.forked_cluster import ForkedCluster
from tests.java_program import java_command
from tests.tools import JAVA_LIBRARIES

PAGE = Path(__file__).parents[2] / "docs" / "start" / "COMPATIBILITY.md"
PROGRAM = Path(__file__).with_name("ShareConsumerScenarios.java")
PARTS = [
    PROGRAM.with_name(f"Share{part}.java")
    for part in ("World", "PollScenarios", "AcknowledgementScenarios", "DeliveryScenarios", "LogScenarios")
]
RECORDED = Path(__file__).parents[1] / "data" / "share_scenarios_on_kafka.txt"
CHEAP = ("acknowledge_records", "poison_batch", "session_ends")
"""Run in `make test`, without Kafka: its rows are recorded."""
SAME_SETTINGS = {
    "group.share.min.record.lock.duration.ms": 1_000,
    "group.share.min.partition.max.record.locks": 100,
    "log.cleaner.backoff.ms": 200,
}
ONE_NODE = {
    "auto.create.topics.enable": "false",
    "log.initial.task.delay.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its bootstrap address."""
    settings = ONE_NODE | {name: str(value) for name, value in SAME_SETTINGS.items()}
    with kafka_server(tmp_path_factory.mktemp("kafka"), settings) as bootstrap:
        yield bootstrap


@pytest.fixture(scope="module")
def headrace(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The addresses of two agents with the same settings of share groups."""
    settings = SETTINGS | SAME_SETTINGS | {"auto.create.topics.enable": "false"}
    folder = tmp_path_factory.mktemp("dev")
    log = folder / "agents.log"
    with ForkedCluster(postgres_server, folder, agents=2, settings=settings, errors=log) as running:
        yield running.bootstrap


@pytest.mark.slow
@pytest.mark.needs("kafka")
@pytest.mark.requirement("X12")
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_answers_differ_only_where_it_is_documented(name: str, kafka: str, headrace: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        on_kafka, here = pool.map(lambda bootstrap: rows(SCENARIOS[name], Server(bootstrap)), (kafka, headrace))
    assert [step for step, _ in here] == [step for step, _ in on_kafka]
    differing = {step: (of_kafka, ours) for (step, of_kafka), (_, ours) in zip(on_kafka, here, strict=True)
                 if of_kafka != ours}  # fmt: skip
    assert differing == {step: (each.kafka, each.headrace) for step, each in DOCUMENTED.get(name, {}).items()}
    if name in CHEAP:
        assert on_kafka == _recorded(name)


@pytest.mark.requirement("X12")
@pytest.mark.parametrize("name", CHEAP)
def test_the_answers_are_those_that_kafka_gave(name: str, server: DevServer) -> None:
    documented = DOCUMENTED.get(name, {})
    here = [
        (step, documented[step].kafka if step in documented and answer == documented[step].headrace else answer)
        for step, answer in rows(SCENARIOS[name], Server(server.bootstrap))
    ]
    assert here == _recorded(name)


def test_the_reasons_are_in_the_documents() -> None:
    assert DOCUMENTED.keys() <= SCENARIOS.keys()
    differences = [each for of_scenario in DOCUMENTED.values() for each in of_scenario.values()]
    assert all(each.kafka != each.headrace for each in differences)
    listed = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for row in {each.row for each in differences} | set(DOCUMENTED_OF_CONSUMERS.values()):
        assert any(line.startswith(f"| {row}") for line in listed), row


@pytest.mark.slow
@pytest.mark.needs("kafka", "kafka-clients")
@pytest.mark.requirement("X12")
@pytest.mark.parametrize("on", ["kafka", "headrace"])
def test_kafka_s_share_consumer_passes_its_scenarios(on: str, request: pytest.FixtureRequest) -> None:
    command = java_command(PROGRAM, f"{JAVA_LIBRARIES}/*", parts=PARTS)
    done = subprocess.run([*command, request.getfixturevalue(on)], capture_output=True, text=True, check=True)
    answers = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    assert len(answers) > 70
    failed = {name: answer for name, answer in answers.items() if answer != "pass"}
    assert failed.keys() == (DOCUMENTED_OF_CONSUMERS.keys() if on == "headrace" else set()), failed


def _recorded(name: str) -> list[tuple[str, str]]:
    lines = [line.split(" | ") for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    return [(step, answer) for scenario, step, answer in lines if scenario == name]
