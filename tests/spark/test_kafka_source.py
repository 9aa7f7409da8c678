"""Spark's own Kafka source through an agent returns the same rows as Headrace's source.

Needs the jars of Spark's Kafka source, which `python -m load.tools` fetches with Maven.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
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


@pytest.mark.slow
@pytest.mark.requirement("X6.1")
def test_both_sources_read_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is needed: pip install 'headrace[spark]'")
    with DevServer(tmp_path / "data") as server:
        asyncio.run(server.create_topic("orders", 3))
        producer = Producer({"bootstrap.servers": server.bootstrap, "compression.type": "lz4", "linger.ms": 20})
        for number in range(RECORDS):
            producer.produce("orders", f"value-{number}", key=None if number % 3 else f"key-{number}")
        assert producer.flush(60) == 0
        options = json.dumps({"metastore.url": server.metastore_url, "bucket": server.bucket})
        jars = ",".join(str(path) for path in SPARK_KAFKA_JARS.glob("*.jar"))
        output = subprocess.run(
            [sys.executable, "-m", "load.spark_sources", options, server.bootstrap, "orders", "1", jars],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True, text=True, timeout=380, check=False,
        )  # fmt: skip
    ends = {line.split()[1]: line.split()[3:] for line in output.stdout.splitlines() if line.startswith("end ")}
    assert ends.keys() == {"headrace", "kafka"}, output.stderr
    assert ends["headrace"] == ends["kafka"]
    assert ends["kafka"][0] == str(RECORDS)
