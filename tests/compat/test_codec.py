"""Every API and version that an agent advertises, with random requests, read by Kafka's own message classes."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import create_connection

import psycopg
import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.protocol.api_versions import APIS
from tests.compat.codec_check import check, codec_agent

pytestmark = [
    pytest.mark.needs("kafka"),
]
DESCRIBE_CLUSTER = 60
OTHER_VERSIONS = {"Produce": "not in Kafka: 0-2"}
"""What docs/start/COMPATIBILITY.md says of versions that only one of both has."""


@pytest.fixture(scope="module")
def addresses(
    postgres_server: EmbeddedPostgres, metastore_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE codec TEMPLATE {metastore_template}".encode())
    with codec_agent(postgres_server.url("codec"), tmp_path_factory.mktemp("codec")) as found:
        yield found


def test_a_request_of_each_version(addresses: list[str]) -> None:
    report = check(addresses, seed=1, requests=1)
    assert report.findings == []
    assert sorted(key.key for key in report.keys if key.requests) == sorted(APIS)
    assert {key.name: key.other for key in report.keys if key.other} == OTHER_VERSIONS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
def test_many_requests_of_each_version(addresses: list[str], seed: int) -> None:
    report = check(addresses, seed, requests=25)
    assert report.findings == []
    assert sum(key.requests for key in report.keys) >= 25 * len(APIS)


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        pytest.param(lambda answer: answer + b"\0", "left over", id="a byte too many"),
        pytest.param(lambda answer: answer[:-4], "unreadable", id="a field left out at the end"),
        pytest.param(
            lambda answer: answer[:4] + b"\0" + answer[4:],
            "unreadable",
            id="the flexible header",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda answer: b"\0\0\0\0" + answer[4:],
            "correlation id",
            id="another correlation id",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda answer: answer.replace(b"127.0.0.1", b"127.0.\xff.1"),
            "differs",
            id="text that is no UTF-8",
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda _: None, "no answer", id="no answer", marks=pytest.mark.slow),
    ],
)
def test_the_check_finds(addresses: list[str], bug: Callable[[bytes], bytes | None], found: str) -> None:
    with _relay(addresses[1], bug) as address:
        report = check([address], seed=1, requests=6, keys=[DESCRIBE_CLUSTER])
    assert found in "".join(report.findings)


@contextmanager
def _relay(address: str, bug: Callable[[bytes], bytes | None]) -> Iterator[str]:
    """Run a relay in front of an agent: its answers to DescribeCluster have the bug; None ends the connection
    instead.
    """
    host, port = address.split(":")

    class Relayed(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with create_connection((host, int(port))) as upstream, upstream.makefile("rwb") as agent:
                while request := _frame(self.rfile.read):
                    agent.write(struct.pack(">i", len(request)) + request)
                    agent.flush()
                    answer: bytes | None = _frame(agent.read)
                    if struct.unpack(">h", request[:2])[0] == DESCRIBE_CLUSTER:
                        answer = bug(answer or b"")
                    if answer is None:
                        return
                    self.wfile.write(struct.pack(">i", len(answer)) + answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relayed) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield "{}:{}".format(*server.server_address)
        server.shutdown()
        thread.join()


def _frame(read: Callable[[int], bytes]) -> bytes:
    head = read(4)
    return read(struct.unpack(">i", head)[0]) if len(head) == 4 else b""
