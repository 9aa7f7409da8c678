"""`headrace topics alter --double` when its agent goes away: the command names a count, so it may ask another one."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable

import pytest

from headrace.cli.main import main
from headrace.cli.scaling import double
from headrace.protocol.client import cluster as cluster_module
from headrace.protocol.client.cluster import ANY, TRIES, KafkaCluster
from headrace.protocol.client.transport import ClientConfig
from headrace.protocol.own_requests import (
    ScaleRequest,
    ScaleResponse,
    ScaleStep,
    decode_scale_request,
    encode_scale_response,
)
from headrace.storage.errors import UnavailableError

HEADER_BYTES = 4 + 8 + 2 + len("headrace")
Address = tuple[str, int]


class Agents:
    """Two agents of one cluster. `ends_with`: the first one serves such a request and is killed."""

    def __init__(self, count: int, ends_with: Callable[[ScaleRequest], bool]) -> None:
        self.count, self._ends_with = count, ends_with
        self.asked: list[tuple[int, ScaleRequest]] = []
        self.gone = False
        self._ports: dict[int, int] = {}

    def connect(self, config: ClientConfig, address: Address, *_: object) -> socket.socket:
        if address[1] == 1 and self.gone:
            raise ConnectionRefusedError("refused")
        connection = socket.socket()
        self._ports[id(connection)] = address[1]
        return connection

    def exchange_frame(self, connection: socket.socket, frame: bytes) -> bytes:
        port, request = self._ports[id(connection)], decode_scale_request(memoryview(frame)[HEADER_BYTES:])
        if port == 1 and self.gone:
            raise ConnectionResetError("reset")
        self.asked.append((port, request))
        if request.step is ScaleStep.DOUBLE and self.count != request.partition_count:
            self.count *= 2
        if port == 1 and self._ends_with(request):
            self.gone = True
            raise ConnectionResetError("reset")
        boundaries = self.count // 2 if request.step is ScaleStep.LOOK else 0
        return encode_scale_response(1, ScaleResponse(0, None, self.count, self.count // 2, boundaries))


def _cluster(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaCluster, list[float]]:
    monkeypatch.setattr(cluster_module, "connect", agents.connect)
    monkeypatch.setattr(cluster_module, "exchange_frame", agents.exchange_frame)
    pauses: list[float] = []
    cluster = KafkaCluster(ClientConfig((("one", 1),)), pauses.append)
    cluster._addresses = {1: ("one", 1), 2: ("two", 2)}
    cluster._connections[ANY] = cluster._connect(ANY, ("one", 1))
    monkeypatch.setattr(cluster, "nodes", list)
    return cluster, pauses


def _args() -> argparse.Namespace:
    given = {"topic": "t", "partitions": 4, "force": False, "validate_only": False, "producers_max_age_ms": 0}
    return argparse.Namespace(**given, no_wait=False, halve=False, json=True)


@pytest.mark.parametrize("at", [ScaleStep.DOUBLE, ScaleStep.LOOK])
def test_it_goes_on_through_another_agent_and_doubles_once(
    at: ScaleStep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = Agents(2, lambda request: request.step is at and len(agents.asked) > 1)
    cluster, _ = _cluster(agents, monkeypatch)
    assert double(cluster, _args()) == 0
    assert agents.count == 4
    assert '"partitions": 4' in capsys.readouterr().out
    assert double(cluster, _args()) == 0, "a script repeats the command"
    assert agents.count == 4
    assert {request.partition_count for _, request in agents.asked if request.step is ScaleStep.DOUBLE} == {4}


def test_without_agents_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(2, lambda request: True)
    cluster, pauses = _cluster(agents, monkeypatch)
    cluster._addresses = {}
    with pytest.raises(UnavailableError, match="reset"):
        cluster.scale_topic(ScaleRequest("t", ScaleStep.LOOK))
    assert pauses == [], "other brokers do not know the request: they are asked once"
    with pytest.raises(UnavailableError):
        cluster.scale_topic(ScaleRequest("t", ScaleStep.DOUBLE, partition_count=4), TRIES)
    assert len(pauses) == TRIES - 1


@pytest.mark.parametrize("step", ["--double", "--halve"])
def test_the_count_has_to_be_named(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["topics", "alter", "t", step, "-b", "127.0.0.1:1"])
    assert "need --partitions" in capsys.readouterr().err
