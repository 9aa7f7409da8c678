"""Spark's own Kafka source through an agent: the rows of Headrace's source, and a stream with a killed JVM.

Needs the jars of Spark's Kafka source, which `python -m load.tools` fetches with Maven.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from load.dev_server import DevServer
from load.tools import SPARK_KAFKA_JARS, why_missing

pytestmark = [
    pytest.mark.skipif(bool(why_missing("spark-kafka")), reason=str(why_missing("spark-kafka"))),
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(400),
]
RECORDS = 3_000
DRIVER = Path(__file__).with_name("kafka_stream_driver.py")
SPARK_SECONDS = 600
ENVIRONMENT = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def _fill(server: DevServer) -> None:
    asyncio.run(server.create_topic("orders", 3))
    producer = Producer({"bootstrap.servers": server.bootstrap, "compression.type": "lz4", "linger.ms": 20})
    for number in range(RECORDS):
        producer.produce("orders", f"value-{number}", key=None if number % 3 else f"key-{number}")
    assert producer.flush(60) == 0


def _jars() -> str:
    return ",".join(str(path) for path in SPARK_KAFKA_JARS.glob("*.jar"))


@pytest.mark.slow
@pytest.mark.requirement("X6.1")
def test_both_sources_read_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is needed: pip install 'headrace[spark]'")
    with DevServer(tmp_path / "data") as server:
        _fill(server)
        options = json.dumps({"metastore.url": server.metastore_url, "bucket": server.bucket})
        output = subprocess.run(
            [sys.executable, "-m", "load.spark_sources", options, server.bootstrap, "orders", "1", _jars()],
            env=ENVIRONMENT,
            capture_output=True, text=True, timeout=380, check=False,
        )  # fmt: skip
    ends = {line.split()[1]: line.split()[3:] for line in output.stdout.splitlines() if line.startswith("end ")}
    assert ends.keys() == {"headrace", "kafka"}, output.stderr
    assert ends["headrace"] == ends["kafka"]
    assert ends["kafka"][0] == str(RECORDS)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.requirement("X6.2")
def test_a_killed_jvm_of_the_kafka_source_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is needed: pip install 'headrace[spark]'")
    with DevServer(tmp_path / "data") as server:
        _fill(server)
        command = [sys.executable, str(DRIVER), server.bootstrap, str(tmp_path), _jars()]
        with (tmp_path / "log").open("w") as log:
            driver = subprocess.Popen(
                [*command, "run"], env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
            )
        try:
            deadline = time.monotonic() + SPARK_SECONDS
            while _commits(tmp_path) < 2:
                assert driver.poll() is None, (tmp_path / "log").read_text()[-4000:]
                assert time.monotonic() < deadline, "no micro-batch was committed"
                time.sleep(0.05)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert _commits(tmp_path) < RECORDS // 50, "it was killed in the middle"
        finished = subprocess.run(
            [*command, "finish"], env=ENVIRONMENT, capture_output=True, text=True, timeout=SPARK_SECONDS, check=False
        )
    assert f"found {RECORDS} {RECORDS} {RECORDS}" in finished.stdout, finished.stderr[-4000:]


def _commits(directory: Path) -> int:
    """Micro-batches that ended."""
    return len(list((directory / "checkpoint" / "commits").glob("[0-9]*")))
