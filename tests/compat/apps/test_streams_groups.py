"""Kafka Streams with group.protocol=streams: twelve topologies, killed and restarted, here and on Apache Kafka.

What a topology writes is computed here from its input: both clusters must end with exactly that, with exactly-once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import ClientConfig, parse_servers
from load.dev_server import DevServer
from tests.compat.apps.streams_run import QUICK, RECORDS, WRITTEN, Program, Run
from tests.compat.kafka_server import kafka_server
from tests.house.needs import require
from tests.tools import EARLIER_STREAMS_JARS, KAFKA_APPS

pytestmark = [pytest.mark.requirement("X16"), pytest.mark.slow, pytest.mark.needs("kafka-apps")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program.compiled(tmp_path_factory.mktemp("program"), KAFKA_APPS)


@pytest.fixture(scope="module")
def earlier_program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program.compiled(tmp_path_factory.mktemp("earlier-program"), EARLIER_STREAMS_JARS)


@pytest.fixture(scope="module")
def quick_headrace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of two agents."""
    with DevServer(tmp_path_factory.mktemp("dev"), agents=2, settings={**QUICK, "linger.ms": 25}) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def quick_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address."""
    require("kafka")
    with kafka_server(tmp_path_factory.mktemp("kafka"), QUICK) as bootstrap:
        yield bootstrap


@pytest.mark.parametrize("cluster", ["headrace", "kafka"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_topology_ends_with_the_same_output_under_kills_and_restarts(
    cluster: str, name: str, program: Program, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    _go_on_under_kills(Run(request.getfixturevalue(f"quick_{cluster}"), name, program, tmp_path))


@pytest.mark.needs("kafka-streams-earlier")
@pytest.mark.parametrize("name", WRITTEN)
def test_an_earlier_kafka_streams_ends_with_the_same_output(
    quick_headrace: str, name: str, earlier_program: Program, tmp_path: Path
) -> None:
    _go_on_under_kills(Run(quick_headrace, f"{name}-earlier", earlier_program, tmp_path))


def _go_on_under_kills(run: Run) -> None:
    third = RECORDS // 3
    with ExitStack() as apps:
        killed = apps.enter_context(run.app(1))
        run.produce(slice(0, third))
        killed.until(lambda: run.is_done(third), "the first third is done")
        with run.app(2) as second:
            run.produce(slice(third, 2 * third))
            killed.kill()
            second.until(lambda: run.is_done(2 * third), "another instance went on where one was killed")
            last = apps.enter_context(run.app(3))
            run.produce(slice(2 * third, RECORDS))
        last.until(lambda: run.is_done(RECORDS), "the last instance went on where another one was stopped")


def test_an_application_goes_on_when_the_coordinator_is_killed(program: Program, tmp_path: Path) -> None:
    """Its output goes on, too: exactly once, at the other agent."""
    half = RECORDS // 2
    with DevServer(tmp_path / "dev", agents=2, settings={**QUICK, "linger.ms": 25}) as server:
        run = Run(server.bootstrap, "words", program, tmp_path)
        with run.app(1) as app:
            run.produce(slice(0, half))
            app.until(lambda: run.is_done(half), "the first half is done")
            config = ClientConfig(parse_servers(server.bootstrap), "judge", 60_000)
            with KafkaCluster.of(config) as cluster:
                holder = cluster.coordinator("words")
            (pid,) = (agent.pid for agent in server.agents if agent.node_id == holder)
            os.kill(pid, signal.SIGKILL)
            run.produce(slice(half, RECORDS))
            app.until(lambda: run.is_done(RECORDS), "the application goes on")
