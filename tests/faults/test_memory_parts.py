"""A real agent under produce and fetch load: its limits are those of its settings, and no part exceeds its own."""

from __future__ import annotations

import threading
import time
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from headrace.config.memory_budget import MIB, memory_budget
from headrace.config.settings import Settings
from tests.agent_process import SECONDS_MAX, AgentUnderTest, format_storage

SMALL = Settings(
    buffer_memory_bytes=16 * MIB,
    cache_bytes=8 * MIB,
    reply_memory_bytes=4 * MIB,
    request_memory_bytes=2 * MIB,
    flush_bytes=MIB,
    socket_request_max_bytes=2 * MIB,
    upload_parallelism=2,
)
GIVEN = {
    "buffer.memory.bytes": SMALL.buffer_memory_bytes,
    "cache.bytes": SMALL.cache_bytes,
    "reply.memory.bytes": SMALL.reply_memory_bytes,
    "request.memory.bytes": SMALL.request_memory_bytes,
    "flush.bytes": SMALL.flush_bytes,
    "socket.request.max.bytes": SMALL.socket_request_max_bytes,
    "upload.parallelism": SMALL.upload_parallelism,
}
RECORD_BYTES, RECORDS = 50_000, 600
REST_SECONDS = 0.05
"""Between two looks: a page takes more CPU time than what it shows."""

BRIEFLY_USED = ("produce_requests", "uploads")
"""Parts in which there is something only at times: a look may miss all of them, so records are sent until one does
not."""


class Scraper(threading.Thread):
    """Reads the parts again and again, and keeps the most of each."""

    def __init__(self, http: str) -> None:
        super().__init__()
        self._http, self._ended = http, threading.Event()
        self.limits: dict[str, float] = {}
        self.most: dict[str, float] = {}

    def run(self) -> None:
        while not self._ended.wait(REST_SECONDS):
            self.read()

    def read(self) -> None:
        with urllib.request.urlopen(f"http://{self._http}/metrics", timeout=300) as response:
            page = response.read().decode()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == "headrace_memory_limit_bytes":
                    self.limits[sample.labels["part"]] = sample.value
                elif sample.name == "headrace_memory_bytes":
                    part = sample.labels["part"]
                    self.most[part] = max(sample.value, self.most.get(part, 0.0))

    def end(self) -> None:
        self._ended.set()
        self.join()


def test_parts_are_the_settings_and_a_load_stays_within_them(metastore_url: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {"metastore.url": metastore_url, "bucket": tmp_path.as_uri(), "linger.ms": 20}
    format_storage(settings)
    with AgentUnderTest(settings | GIVEN | {"log.level": "warning"}) as agent:
        scraper = Scraper(agent.http)
        scraper.start()
        try:
            admin = AdminClient({"bootstrap.servers": agent.kafka})
            admin.create_topics([NewTopic("t", 4, 1)])["t"].result()
            producer = Producer({"bootstrap.servers": agent.kafka, "queue.buffering.max.kbytes": 200_000})
            until = time.monotonic() + SECONDS_MAX
            while not all(scraper.most.get(part) for part in BRIEFLY_USED):
                assert time.monotonic() < until, scraper.most
                for number in range(RECORDS):
                    producer.produce("t", bytes(RECORD_BYTES), partition=number % 4)
                assert producer.flush(SECONDS_MAX) == 0
            consumer = Consumer({"bootstrap.servers": agent.kafka, "group.id": "g", "auto.offset.reset": "earliest"})
            consumer.subscribe(["t"])
            assert len(consumer.consume(RECORDS, SECONDS_MAX)) == RECORDS
            consumer.close()
        finally:
            scraper.end()
        assert scraper.limits == dict(memory_budget(SMALL))
        assert scraper.limits.keys() - scraper.most.keys() == {"python"}, "every other part is counted"
        assert all(most <= scraper.limits[part] for part, most in scraper.most.items()), scraper.most
        assert all(scraper.most[part] > 0 for part in (*BRIEFLY_USED, "fetch_cache", "connections"))
