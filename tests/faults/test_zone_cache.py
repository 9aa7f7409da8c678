"""Two agents in one zone and one in another: files are read once per zone, and no data byte crosses zones."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.agent_process import AgentUnderTest, until_told
from tests.confluent_records import read

RECORDS = 1200
PARTITIONS = 16
SECONDS_MAX = 300
PATIENT = {
    "broker.session.timeout.ms": 30_000,  # a pause of the machine sends no client to the other zone
    "zone.cache.timeout.ms": 30_000,  # nor an agent to the store
    "process.roles": "broker,controller",  # a merged file is in no agent's memory
}
"""What is counted depends on no pause."""
Three = tuple[AgentUnderTest, AgentUnderTest, AgentUnderTest]


@contextmanager
def _running(settings: dict[str, object]) -> Iterator[Three]:
    a, b = {"broker.rack": "zone-a"}, {"broker.rack": "zone-b"}
    with (
        AgentUnderTest(settings | a) as first,
        AgentUnderTest(settings | a) as second,
        AgentUnderTest(settings | b) as third,
    ):
        yield first, second, third


@pytest.fixture
def three(agent_settings: dict[str, object]) -> Iterator[Three]:
    with _running(agent_settings) as agents:
        yield agents


@pytest.fixture
def patient_three(agent_settings: dict[str, object]) -> Iterator[Three]:
    with _running(agent_settings | PATIENT) as agents:
        yield agents


def _metric(agent: AgentUnderTest, name: str, **labels: str) -> float:
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=SECONDS_MAX) as response:
        text = response.read().decode()
    found = 0.0
    for line in re.findall(rf"^headrace_{name}(?:\{{.*\}})? .*$", text, re.MULTILINE):
        if all(f'{key}="{value}"' in line for key, value in labels.items()):
            found += float(line.rsplit(" ", 1)[1])
    return found


def _bootstrap(agents: Three) -> str:
    return ",".join(agent.kafka for agent in agents)


def _consumer(agents: Three, zone: str, group: str) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": _bootstrap(agents), "group.id": group, "client.id": f"readers,zone={zone}"}
    )
    consumer.assign([confluent_kafka.TopicPartition("t", p, 0) for p in range(PARTITIONS)])
    return consumer


def _produce(agents: Three, zone: str, size: int = 400) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": _bootstrap(agents), "client.id": f"writers,zone={zone}", "linger.ms": 5}
    )
    for number in range(RECORDS):
        producer.produce("t", number.to_bytes(4, "big") * (size // 4), partition=number % PARTITIONS)
        if number % 100 == 99:
            producer.flush(SECONDS_MAX)
    assert producer.flush(SECONDS_MAX) == 0


def _create(agents: Three) -> None:
    admin = AdminClient({"bootstrap.servers": _bootstrap(agents)})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(SECONDS_MAX)
    until_told(agents, "t")


@pytest.mark.requirement("W12")
@pytest.mark.requirement("W15")
def test_a_zone_shares_its_files_and_no_data_byte_crosses_zones(patient_three: Three) -> None:
    three = patient_three
    _create(three)
    readers = [_consumer(three, "zone-a", "a"), _consumer(three, "zone-b", "b")]
    for reader in readers:
        reader.consume(1, 1.0)  # it is there when the records come
    _produce(three, "zone-b")
    for reader in readers:
        read(reader, RECORDS, SECONDS_MAX)
        reader.close()

    first, second, third = three
    zone_a = (first, second)
    until = time.monotonic() + SECONDS_MAX
    while True:  # what is under way was sent, and is served in a moment
        asked = sum(_metric(agent, "zone_cache_rpcs_total", direction="sent") for agent in zone_a)
        served = sum(_metric(agent, "zone_cache_rpcs_total", direction="served") for agent in zone_a)
        if asked == served > 0:
            break
        assert time.monotonic() < until, (asked, served)
        time.sleep(0.1)
    assert sum(_metric(agent, "fetch_read_bytes_total", source="zone") for agent in zone_a) > 0
    assert _metric(third, "zone_cache_rpcs_total") == 0, "alone in its zone"
    assert _metric(third, "fetch_read_bytes_total", source="store") == 0, "it wrote these files itself"
    for agent in three:
        assert _metric(agent, "zone_traffic_bytes_total", zone="other") == 0
        assert _metric(agent, "zone_cache_fallbacks_total") == 0
    assert _metric(third, "zone_traffic_bytes_total", path="produce", zone="same") > RECORDS * 400
    same = sum(_metric(agent, "zone_traffic_bytes_total", path="fetch", zone="same") for agent in three)
    assert same > 2 * RECORDS * 400
    from_store = sum(_metric(agent, "fetch_read_bytes_total", source="store") for agent in zone_a)
    stored = _metric(third, "produce_bytes_total")
    assert from_store < 1.3 * stored, "each chunk is read once per zone"


@pytest.mark.slow
def test_readers_go_on_when_an_agent_of_their_zone_is_killed(three: Three) -> None:
    _create(three)
    _produce(three, "zone-b")
    three[1].kill()
    reader = _consumer(three, "zone-a", "a")
    read(reader, RECORDS, SECONDS_MAX)
    reader.close()


@pytest.mark.slow
def test_readers_go_on_when_an_agent_of_their_zone_hangs(three: Three) -> None:
    _create(three)
    three[1].pause()
    _produce(three, "zone-b")
    try:
        reader = _consumer(three, "zone-a", "a")
        read(reader, RECORDS, SECONDS_MAX)
        reader.close()
    finally:
        three[1].resume()
