"""Bytes, requests and records by user and client id: complete, bounded, and of those that use most."""

from __future__ import annotations

import random
import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.agent.access.quotas.client_traffic import (
    CANDIDATES_MAX,
    CHANGES_MAX,
    LOOK_SECONDS,
    OTHERS,
    SEEN_SECONDS,
    ClientTraffic,
    HeavyClients,
)
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.protocol.request import ClientConnection, Request, Response
from tests.agent.listener.listener_client import Client, limits, listening, until
from tests.agent.produce.produce_world import ProduceWorld
from tests.seeds import examples
from tests.storage.batches import plain_batch

LONGEST_CLIENT_ID = 32_767
HOSTILE = ("[/x][bold]", "\x1b]0;owned\x07", 'a"}\n# HELP x\nheadrace_client_requests_total{user="', "}\\", "\u202efdp")


class CountedClients:
    """Clients without a listener, and what /metrics shows of them."""

    def __init__(self, pairs_max: int) -> None:
        self.registry = CollectorRegistry()
        self.traffic = ClientTraffic(pairs_max, self.registry)
        self.now = 0.0

    def request(self, client_id: str, size_bytes: int, principal: str | None = None) -> None:
        connection = ClientConnection(1, "127.0.0.1:1", principal)
        client = self.traffic.sender(connection, client_id, self.now)
        assert client is not None
        client.sent_request(size_bytes)
        client.got_answer(10)

    def shown(self, name: str) -> dict[tuple[str, str], float]:
        """Return what the page shows, by pair; a page that has a pair twice fails."""
        found: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(generate_latest(self.registry).decode()):
            for sample in family.samples:
                if sample.name == f"headrace_client_{name}_total":
                    pair = sample.labels["user"], sample.labels["client_id"]
                    assert pair not in found
                    found[pair] = sample.value
        return found


def test_each_pair_has_its_counts_and_all_others_are_one_sum() -> None:
    counted = CountedClients(2)
    counted.request("loader", 100, "User:alice")
    counted.request("loader", 50)
    counted.request("loader", 5, "User:bob")
    counted.request("other", 6, "User:alice")
    counted.request("loader", 1, "User:alice")
    alice, nobody = ("alice", "loader"), ("ANONYMOUS", "loader")
    assert counted.shown("received_bytes") == {alice: 101, nobody: 50, OTHERS: 11}
    assert counted.shown("requests") == {alice: 2, nobody: 1, OTHERS: 2}
    assert counted.shown("sent_bytes") == {alice: 20, nobody: 10, OTHERS: 20}


def test_zero_switches_the_counts_by_client_off() -> None:
    counted = CountedClients(0)
    assert not counted.traffic.is_on
    assert list(counted.registry.collect()) == []


def test_agents_and_unknown_clients_do_not_count() -> None:
    counted = CountedClients(10)
    for connection in (
        ClientConnection(1, "a", is_link=True),
        ClientConnection(1, "a", is_agent=True),
        ClientConnection(1, "a", must_authenticate=True),
    ):
        assert counted.traffic.sender(connection, "x", 0.0) is None
    assert counted.shown("requests") == {OTHERS: 0}


def test_hostile_names_are_shown_exactly_and_break_no_page() -> None:
    counted = CountedClients(10)
    for name in HOSTILE:
        counted.request(name, 1, f"User:{name}")
    assert set(counted.shown("requests")) == {*((name, name) for name in HOSTILE), OTHERS}


def test_a_heavy_client_has_a_name_although_each_request_of_another_has_a_new_one() -> None:
    counted = CountedClients(5)
    rng = random.Random(1)
    for number in range(5):
        counted.request(f"first-{number}", 100)  # takes the names
    names: list[set[tuple[str, str]]] = []
    for second in range(200):
        counted.now = float(second)
        counted.request("heavy", 50_000, "User:loader")
        for _ in range(40):
            counted.request(f"{rng.getrandbits(64):x}", 1_000)
        names.append(set(counted.shown("requests")))
    assert ("loader", "heavy") in names[int(SEEN_SECONDS + 2 * LOOK_SECONDS)]
    assert all(("loader", "heavy") in shown for shown in names[60:]), "it keeps its name"
    shown = counted.shown("received_bytes")
    assert shown["loader", "heavy"] > 100 * 50_000
    assert max(shown, key=lambda pair: shown[pair] if pair != OTHERS else 0) == ("loader", "heavy")
    assert sum(shown.values()) == 500 + 200 * (50_000 + 40_000), "nothing is lost"
    every = set().union(*names)
    assert len(every) <= 6 + CHANGES_MAX * 200 / LOOK_SECONDS, "few series, however many names"


def test_the_longest_names_use_a_bounded_memory_and_take_no_name_away() -> None:
    counted = CountedClients(1_000)
    counted.request("real", 1_000_000)
    for number in range(1_500):
        counted.now += 0.1
        counted.request(chr(0x10000 + number) * LONGEST_CLIENT_ID, 40_000)
        assert counted.traffic.in_use_bytes <= REMEMBERED_BYTES["client_traffic"]
    assert counted.shown("received_bytes")["ANONYMOUS", "real"] == 1_000_000
    assert all(len(client_id) < 300 for _, client_id in counted.shown("requests"))


def test_a_client_that_went_is_followed_by_one_that_came() -> None:
    counted = CountedClients(1)
    counted.request("gone", 10_000_000)
    for second in range(0, 1_200, 5):
        counted.now = float(second)
        counted.request("new", 10_000)
    assert set(counted.shown("requests")) == {("ANONYMOUS", "new"), OTHERS}
    assert counted.shown("received_bytes")[OTHERS] >= 10_000_000


@settings(max_examples=examples(25))
@example([(number, number, 0.5) for number in range(40)] * 3, 3)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 10_000), st.sampled_from((0.0, 0.5, 30.0, 4_000.0))), max_size=200
    ),
    st.integers(1, 8),
)
def test_no_count_falls_and_nothing_is_lost(uses: list[tuple[int, int, float]], named_max: int) -> None:
    heavy = HeavyClients(named_max, memory_bytes=12_000)
    now = total = 0.0
    others, before = 0, {}
    for number, size, pause in uses:
        now += pause
        heavy.client((f"u{number}", ""), now).sent_request(size)
        total += size
        after = {counts.pair: counts.received_bytes for counts in heavy.named}
        assert sum(after.values()) + heavy.others.received_bytes == total
        assert heavy.others.received_bytes >= others
        assert all(after[pair] >= before[pair] for pair in after.keys() & before.keys())
        assert len(after) == len(heavy.named) <= named_max
        assert len(heavy) <= named_max + CANDIDATES_MAX
        assert heavy.in_use_bytes <= min(12_000, 1_000 * len(heavy))
        others, before = heavy.others.received_bytes, after


async def test_the_listener_counts_requests_and_answers_of_its_clients() -> None:
    registry = CollectorRegistry()
    traffic = ClientTraffic(10, registry)

    async def answer(request: Request) -> Response:
        request.sender.sent_records(3)
        return Response([request.correlation_id.to_bytes(4, "big"), bytes(96)])

    def from_client(client_id: bytes, body: bytes) -> bytes:
        header = struct.pack(">hhih", 3, 1, 7, len(client_id)) + client_id
        return struct.pack(">i", len(header) + len(body)) + header + body

    async with listening(answer, limits()) as server:
        server.listener.count_clients(traffic)
        client = await Client.connect(server.port)
        one, other = from_client(b"one", bytes(500)), from_client(b"other", b"")
        await client.send(one, one, other)
        for _ in range(3):
            await client.reply()
        await client.close()

        def value(name: str, client_id: str) -> float | None:
            return registry.get_sample_value(
                f"headrace_client_{name}_total", {"user": "ANONYMOUS", "client_id": client_id}
            )

        await until(lambda: value("sent_bytes", "other") == 100)
        assert value("received_bytes", "one") == 2 * (len(one) - 4)
        assert value("sent_bytes", "one") == 200
        assert (value("requests", "one"), value("received_records", "one")) == (2, 6)


async def test_produce_says_how_many_records_passed_the_checks() -> None:
    class Sender:
        records = 0

        def sent_records(self, records: int) -> None:
            self.records += records

    async with ProduceWorld() as world:
        world.create_topic("t", 2)
        sender, sound = Sender(), plain_batch(3)
        damaged = sound[:-1] + bytes([sound[-1] ^ 1])
        world.sender = sender
        await world.answers({"t": {0: sound, 1: damaged}})
        assert sender.records == 3
