"""A cluster with something on every page: ordinary topics and groups, and values that try to be HTML.

Used by the tests, and by pictures.py.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.console.server import ConsoleOptions, ConsoleServer
from headrace.config.settings import Settings
from headrace.protocol.client.transport import client_config
from headrace.storage.clock import SystemClock
from load.dev_server import DevServer
from tests.kafka_clients import KafkaClients

SECONDS_MAX = 300
HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_GROUP = f"g\"'{HOSTILE}/../?a=b&c"
ORDERS, PAYMENTS, HARD, EMPTY = "orders", "payments", "hard-values", "empty"
BILLING, REPORTS = "billing", "reports"
ORDER_COUNT = 120
FIRST_MS = 1_790_000_000_000
"""Timestamp of the first order; the others follow, a second apart."""
HUNDRED_YEARS_MS = "3155760000000"
"""The records are of a fixed time; retention must not remove them."""
LARGE = b"x" * 300_000


@dataclass
class Hard:
    """Records of HARD, partition 0, by offset: (key, value, headers)."""

    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = field(
        default_factory=lambda: [
            (HOSTILE.encode(), HOSTILE.encode(), [(HOSTILE, b"</pre><script>alert(2)</script>")]),
            (b"gone", None, []),
            (b"\x00\xff\xfe", bytes(range(256)), [("none", None), ("binary", b"\x80\x81")]),
            (None, b"", []),
            (b"json", b'{"id": 7, "who": {"name": "\xc3\x84nne"}, "tags": ["a", "b"]}', []),
            (b"twice", b'{"a": 1, "a": 2}', []),
            (b"large", LARGE, []),
            ("b\u202egpj.exe".encode(), "turns \u202e around".encode(), []),
        ]
    )


def order(number: int) -> bytes:
    """A JSON document."""
    return json.dumps(
        {
            "order": 10_000 + number,
            "customer": f"customer-{number % 17}",
            "items": [{"sku": f"A-{number % 9:03d}", "count": 1 + number % 4}],
            "total": round(12.5 + number * 1.75, 2),
            "paid": number % 3 != 0,
        }
    ).encode()


def fill(bootstrap: str) -> None:
    """Topics, records and groups."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic(ORDERS, 3, config={"retention.ms": HUNDRED_YEARS_MS}),
        NewTopic(PAYMENTS, 2, config={"cleanup.policy": "compact"}),
        NewTopic(HARD, 1),
        NewTopic(EMPTY, 1),
    ]
    for created in admin.create_topics(topics).values():
        created.result(SECONDS_MAX)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000})
    for number in range(ORDER_COUNT):
        producer.produce(
            ORDERS, order(number), f"customer-{number % 17}", number % 3, timestamp=FIRST_MS + number * 1000,
            headers=[("source", b"shop"), ("trace", f"{number:08x}".encode())],
        )  # fmt: skip
        producer.produce(PAYMENTS, f"paid {number}", f"order-{number}", number % 2)
    for key, value, headers in Hard().records:
        producer.produce(HARD, value, key, 0, headers=list(headers))
    assert producer.flush(SECONDS_MAX) == 0
    commit(bootstrap, BILLING, {(ORDERS, 0): 12, (ORDERS, 1): 40, (ORDERS, 2): 30, (PAYMENTS, 0): 60})
    commit(bootstrap, REPORTS, {(PAYMENTS, 0): 5, (PAYMENTS, 1): 60})
    commit(bootstrap, HOSTILE_GROUP, {(HARD, 0): 1})


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """Do the same as a consumer that has stopped."""
    KafkaClients(bootstrap).commit(group, *(TopicPartition(*place, offset) for place, offset in offsets.items()))


class Member:
    """A consumer that is in its group until it is left; `client_id` is what the pages show."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], client_id: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": client_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe(topics)

    def __enter__(self) -> Member:
        while not self._consumer.assignment():
            self._consumer.poll(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        self._consumer.close()


PAUSED_TABLE = "payments_paused"
PAUSE_REASON = f"partition 0, offset 3: {HOSTILE}"


def catalog_settings(folder: Path) -> dict[str, str]:
    """A catalog in this folder."""
    return {
        "tables.catalog.name": "dev",
        "tables.catalog.uri": f"sqlite:///{folder}/catalog.db",
        "tables.warehouse": (folder / "warehouse").as_uri(),
    }


def with_tables(server: DevServer, folder: Path, reason: str = PAUSE_REASON) -> Settings:
    """Make tables of ORDERS and PAYMENTS, the latter paused; return the settings that reach them."""
    from headrace.tables.creating import Values
    from headrace.tables.open_tables import open_tables

    catalog = {name.replace(".", "_"): value for name, value in catalog_settings(folder).items()}
    settings = Settings(metastore_url=server.metastore_url, bucket=server.bucket, **catalog)  # type: ignore[arg-type]

    async def make() -> None:
        async with open_tables(settings) as tables:
            await tables.create(ORDERS, ORDERS, "earliest", ("day",), {})
            await tables.create(PAUSED_TABLE, PAYMENTS, "earliest", (), {}, Values("json"))
            await tables.pause(PAUSED_TABLE, reason)

    asyncio.run(make())
    return settings


def console_of(
    server: DevServer, *, allows_changes: bool = False, with_metastore: bool = True, settings: Settings | None = None
) -> ConsoleServer:
    """A console of this cluster on a free port; it has not started. `settings`: those of `with_tables`."""
    return ConsoleServer(
        ConsoleOptions(
            client=client_config(server.bootstrap, None),
            settings=settings or Settings(metastore_url=server.metastore_url if with_metastore else ""),
            listen=("127.0.0.1", 0),
            agent_urls=tuple(f"http://{agent.http}" for agent in server.agents) if with_metastore else (),
            allows_changes=allows_changes,
        ),
        SystemClock(),
    )
