"""`headrace dev` on S3 keeps small files in Postgres first: a lone producer never waits for linger (X13).

What is counted are the reasons for which the agent closed its files, from its very first record on: no time is
measured, so a busy machine changes nothing. The S3 server is a real one, Postgres is, and so is the client.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from headrace.cli import dev
from headrace.cli.main import main
from headrace.storage.errors import UnavailableError
from load.demo.__main__ import settings
from load.dev_server import DevServer
from tests.fixtures_s3 import BUCKET, aws_credentials, real_s3_url

pytestmark = pytest.mark.requirement("X13")
__all__ = ["aws_credentials", "real_s3_url"]
WAIT_SECONDS = 60.0


def send_one_by_one(bootstrap: str, records: int) -> None:
    """Each record when the one before has its answer, to 12 partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    answers: list[KafkaError | None] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        answers.append(error)

    for number in range(records):
        producer.produce("first", b"v" * 1_000, partition=number % 12, on_delivery=answered)
        while len(answers) <= number:
            assert producer.poll(WAIT_SECONDS), f"no answer: record={number}"
    assert answers == [None] * records


def counters(http: str) -> dict[str, float]:
    """What the agent counts, by name and labels."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=WAIT_SECONDS) as response:
        lines = [line.rpartition(" ") for line in response.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@pytest.mark.parametrize(
    ("words", "named", "expected"),
    [
        (["--bucket", "s3://b/p"], {}, "true"),
        (["--bucket", "s3://b/p", "--low-latency-enable", "false"], {}, "false"),
        (["--bucket", "s3://b/p"], {"HEADRACE_LOW_LATENCY_ENABLE": "false"}, "false"),
        ([], {}, "false"),
    ],
)
def test_a_new_cluster_on_s3_has_it_on_unless_something_is_said(
    words: list[str], named: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cluster has counts: an agent's own value of a cluster's setting is ignored."""
    seen: list[str] = []

    def migrate(url: str, *, values: dict[str, str], **others: object) -> None:
        seen.append(values["low.latency.enable"])
        raise UnavailableError("seen")

    monkeypatch.setattr(dev, "migrate", migrate)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    address = "postgresql://headrace@127.0.0.1:1/none"
    monkeypatch.setattr(dev, "_refuse_foreign", _nothing)
    assert main(["dev", "--data-dir", str(tmp_path / "dev"), "--metastore-url", address, *words]) == 1
    assert seen == [expected]


def test_the_demo_on_s3_leaves_it_to_dev(tmp_path: Path) -> None:
    """It names its bucket, and says nothing of low latency: so it is on."""
    command = DevServer(tmp_path, agents=2, settings=settings({"bucket": "s3://b/p"}))._command
    assert command[command.index("--bucket") + 1] == "s3://b/p"
    assert not [word for word in command if "low-latency" in word or word == "--config"]
    assert "bucket" not in settings({})


async def _nothing(*_: object) -> None:
    """The database is not looked at."""


@pytest.mark.slow
@pytest.mark.needs("versitygw")
async def test_no_answer_of_an_agent_that_just_started_waits_for_linger(real_s3_url: str, tmp_path: Path) -> None:
    records = 1_000
    on_s3 = {"bucket": f"s3://{BUCKET}/dev", "s3.endpoint": real_s3_url}
    with DevServer(tmp_path / "dev", settings=on_s3) as server:
        await server.create_topic("first", 12)
        send_one_by_one(server.agents[0].kafka, records)
        found = counters(server.agents[0].http)
    closed = {key: value for key, value in found.items() if key.startswith("headrace_produce_flushes_total") and value}
    refused = {key: n for key, n in found.items() if key.startswith("headrace_produce_not_inline_total") and n}
    assert closed == {'headrace_produce_flushes_total{reason="ready"}': records}
    assert refused == {}
    assert found["headrace_produce_inline_bytes_total"] > 1_000 * records
