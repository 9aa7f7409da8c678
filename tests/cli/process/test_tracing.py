"""otel.enable: spans leave the process as the standard variables say; without the extra, or with a bad variable, a
start is refused.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace.cli.main import main
from headrace.cli.process.tracing import open_tracing
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from tests.agent_process import AgentUnderTest, format_storage
from tests.kafka_clients import KafkaClients

IMPORTS = """\
import sys
import headrace.cli.process.open_process
print(*(name for name in sys.modules if name.startswith(("opentelemetry.sdk", "headrace.agent.serve.tracing"))))
"""


def test_a_process_without_tracing_imports_none_of_it() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=300)
    assert ended.stdout.split() == []


def test_without_the_extra_a_start_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    words = ["--metastore-url=postgresql://nowhere/x", f"--bucket=file://{tmp_path}", "--otel-enable=true"]
    assert main(["agent", "--listeners=PLAINTEXT://127.0.0.1:0", "--http-port=0", *words]) == 1
    errors = capsys.readouterr().err
    assert (
        "otel.enable is true, but opentelemetry.sdk.trace is not installed; the extra `otel` has it: pip install "
        in errors
    )


def test_a_variable_that_opentelemetry_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ConfigError, match=r"a variable OTEL_\* is invalid: max_queue_size"):
        open_tracing(Settings(otel_enable=True), SystemClock())


def test_spans_reach_the_collector_that_the_environment_names(
    metastore_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"metastore.url": metastore_url, "bucket": f"file://{tmp_path}"}
    format_storage(cluster)
    with _collector() as (endpoint, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-kafka")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        with AgentUnderTest({**cluster, "otel.enable": "true", "broker.rack": "eu-1a"}) as agent:
            KafkaClients(agent.kafka).produce("orders", [b"value"])
            assert agent.stop() == 0, "what is left is sent while the agent stops"
    resources = [resource for request in received.queue for resource in request.resource_spans]
    attributes = {one.key: one.value.string_value for one in resources[0].resource.attributes}
    assert attributes["service.name"] == "orders-kafka"
    assert attributes["cloud.availability_zone"] == "eu-1a"
    names = {span.name for resource in resources for scope in resource.scope_spans for span in scope.spans}
    assert names >= {"produce", "flush", "put", "commit"}


@pytest.mark.slow
def test_a_collector_that_is_away_delays_neither_clients_nor_the_end(metastore_url: str, tmp_path: Path) -> None:
    cluster = {"metastore.url": metastore_url, "bucket": f"file://{tmp_path}"}
    format_storage(cluster)
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with AgentUnderTest({**cluster, "otel.enable": "true", "shutdown.grace.ms": 1_000}, environment) as agent:
        KafkaClients(agent.kafka).produce("orders", [b"value"])
        assert agent.stop() == 0


@contextmanager
def _collector() -> Iterator[tuple[str, queue.Queue[ExportTraceServiceRequest]]]:
    """A receiver of OTLP over HTTP: its address, and what it got."""
    received: queue.Queue[ExportTraceServiceRequest] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            received.put(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()
