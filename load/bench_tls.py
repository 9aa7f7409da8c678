"""What TLS costs an agent: CPU seconds per GB written and read, with and without it, in one run.

Place: `python -m load.bench_tls [--megabytes 500] [--rounds 3]`. One agent with two listeners, on a new
Postgres and a directory. The
client is librdkafka: an idempotent producer with 1 MB batches of 10 KB values, then one consumer from the start. Rounds
with and without TLS take turns; the median of each is printed. The agent's process alone is counted, not Postgres, not
the client.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.main import main as main_of_headrace
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.storage.cluster_properties import random_cluster_id
from load.agent_child import AgentChild
from load.machine_state import machine_state
from load.self_signed import write_certificate
from load.torture.agents import flags

VALUE_BYTES = 10_000
SECONDS_MAX = 300.0


def write(settings: dict[str, Any], topic: str, count: int) -> None:
    """Return when all values are acknowledged."""
    producer = confluent_kafka.Producer(
        settings | {"enable.idempotence": True, "batch.size": 1_000_000, "linger.ms": 50, "log_level": 0}
    )
    value = random.Random(1).randbytes(VALUE_BYTES)
    failures: list[object] = []
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=lambda error, _: error and failures.append(error))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(SECONDS_MAX) or failures:
        raise RuntimeError(f"not everything was written: {failures[:1]}")


def read(settings: dict[str, Any], topic: str, count: int) -> None:
    """Return when all values were read."""
    group = {"group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = confluent_kafka.Consumer(settings | group)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    done = 0
    while done < count:
        found = consumer.consume(1_000, SECONDS_MAX)
        if not found:
            raise RuntimeError(f"not everything was read: {done} of {count}")
        done += sum(message.error() is None for message in found)
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        _run(Path(place), args.megabytes, args.rounds)


def _run(directory: Path, megabytes: int, rounds: int) -> None:
    certificate, key = write_certificate(directory)
    both = directory / "agent.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        secure = f"127.0.0.1:{probe.getsockname()[1]}"
    count = megabytes * 1_000_000 // VALUE_BYTES
    spent: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    (directory / "bucket").mkdir()
    with EmbeddedPostgres(directory / "postgres") as url:
        settings = {"metastore.url": url, "bucket": (directory / "bucket").as_uri()}
        if main_of_headrace(["storage", "format", "-t", random_cluster_id(random.Random(1)), *flags(settings)]):
            raise RuntimeError("the storage could not be formatted")
        own = {"listeners": f"PLAINTEXT://127.0.0.1:0,SSL://{secure}", "ssl.keystore.location": both}
        with AgentChild(settings | own, directory / "agent.log") as agent:
            clients = {
                "plain": {"bootstrap.servers": agent.kafka},
                "TLS": {"bootstrap.servers": secure, "security.protocol": "SSL", "ssl.ca.location": str(certificate)},
            }
            for number in range(rounds):
                for kind, client in clients.items():
                    topic = f"{kind}-{number}"
                    admin = AdminClient(clients["plain"])
                    admin.create_topics([NewTopic(topic, 1)])[topic].result(SECONDS_MAX)
                    for name, work in (("write", write), ("read", read)):
                        before = agent.cpu_seconds()
                        work(client, topic, count)
                        spent[name, kind].append((agent.cpu_seconds() - before) / (megabytes / 1_000))
    print(machine_state())
    print(f"CPU seconds of the agent per GB, {megabytes} MB in values of {VALUE_BYTES} bytes, median of {rounds}")
    for name in ("write", "read"):
        plain, tls = (statistics.median(spent[name, kind]) for kind in ("plain", "TLS"))
        print(f"{name:>6}  without TLS {plain:5.2f}   with TLS {tls:5.2f}   ratio {tls / plain:4.2f}")


if __name__ == "__main__":
    main()
