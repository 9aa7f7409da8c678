"""Spark's own Kafka source through an agent, and the examples of both sources, one with a killed JVM.

Needs the jars of Spark's Kafka source, which `python -m tests.tools` fetches with Maven.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from pyarrow import parquet

from load.dev_server import DevServer
from tests.compat.apps.counting import all_records
from tests.examples import EXAMPLES
from tests.tools import SPARK_KAFKA_JARS

pytestmark = [
    pytest.mark.needs("spark-kafka"),
]
RECORDS = 3_000
SPARK_SECONDS = 600
ENVIRONMENT = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def _spark_environment(arguments: str) -> dict[str, str]:
    """Return the spark environment of an example as a process, with arguments of spark-submit."""
    quiet = "--master local[2] --conf spark.ui.enabled=false --conf spark.driver.bindAddress=127.0.0.1"
    return ENVIRONMENT | {"PYSPARK_SUBMIT_ARGS": f"{quiet} {arguments} pyspark-shell"}


def _run_spark(command: list[str], environment: dict[str, str]) -> None:
    """Run the spark to its end; fails unless it succeeds."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SPARK_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def _fill(server: DevServer) -> None:
    asyncio.run(server.create_topic("orders", 3))
    _produce(server)


def _produce(server: DevServer) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "compression.type": "lz4", "linger.ms": 20})
    for number in range(RECORDS):
        producer.produce("orders", f"value-{number}", key=None if number % 3 else f"key-{number}")
    assert producer.flush(300) == 0


def _jars() -> str:
    return ",".join(str(path) for path in SPARK_KAFKA_JARS.glob("*.jar"))


@pytest.mark.slow
@pytest.mark.requirement("X6.1")
def test_both_sources_read_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is needed: make setup")
    with DevServer(tmp_path / "data") as server:
        _fill(server)
        options = json.dumps({"metastore.url": server.metastore_url, "bucket": server.bucket})
        output = subprocess.run(
            [sys.executable, "-m", "load.workloads.spark_sources", options, server.bootstrap, "orders", "1", _jars()],
            env=ENVIRONMENT,
            capture_output=True, text=True, timeout=380, check=False,
        )  # fmt: skip
    ends = {line.split()[1]: line.split()[3:] for line in output.stdout.splitlines() if line.startswith("end ")}
    assert ends.keys() == {"headrace", "kafka"}, output.stderr
    assert ends["headrace"] == ends["kafka"]
    assert ends["kafka"][0] == str(RECORDS)


@pytest.mark.slow
@pytest.mark.requirement("X6.2")
def test_a_killed_jvm_of_the_kafka_source_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is needed: make setup")
    rows = tmp_path / "rows"
    with DevServer(tmp_path / "data") as server:
        _fill(server)
        command = [sys.executable, str(EXAMPLES / "spark" / "kafka_source.py"), server.bootstrap, "orders"]
        small = [*command, str(tmp_path), "50"]
        environment = _spark_environment(f"--jars {_jars()}")
        with (tmp_path / "log").open("w") as log:
            driver = subprocess.Popen(small, env=environment, stdout=log, stderr=log, start_new_session=True)
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
        _run_spark([*command, str(tmp_path)], environment)
    found = [row for path in _committed_files(rows) for row in parquet.read_table(path).to_pylist()]
    assert len(found) == RECORDS
    assert len({(row["partition"], row["offset"]) for row in found}) == RECORDS
    assert {row["value"] for row in found} == {f"value-{number}" for number in range(RECORDS)}


@pytest.mark.slow
@pytest.mark.requirement("X6.2", "X6.3")
def test_headraces_source_copies_each_record_once(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is needed: make setup")
    with DevServer(tmp_path / "data") as server:
        _fill(server)
        asyncio.run(server.create_topic("copy", 3))
        program = EXAMPLES / "spark" / "headrace_source.py"
        command = [sys.executable, str(program), server.bootstrap, "orders", "copy", str(tmp_path / "checkpoint")]
        for runs in (1, 2):
            _run_spark(command, _spark_environment(""))
            assert Counter(all_records(server.bootstrap, "copy", 3)) == Counter(
                all_records(server.bootstrap, "orders", 3)
            )
            if runs == 1:
                _produce(server)


def _committed_files(rows: Path) -> set[str]:
    """Those that Spark's sink says to be whole: a killed micro-batch leaves others."""
    logs = [path for path in (rows / "_spark_metadata").iterdir() if not path.name.startswith(".")]
    lines = [line for path in logs for line in path.read_text().splitlines() if line.startswith("{")]
    return {urlsplit(json.loads(line)["path"]).path for line in lines}


def _commits(directory: Path) -> int:
    """Micro-batches that ended."""
    return len(list((directory / "checkpoint" / "commits").glob("[0-9]*")))
