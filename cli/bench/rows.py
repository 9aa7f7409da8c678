"""The rows of `headrace bench`: which load each one is.

Place: read by command.py for --rows, by run.py for what to do.
Invariant: a row is the same load for every target: only what is named here differs between rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.config.errors import ConfigError

PARTITIONS = 12
MEGABYTE_BATCHES = {"batch.size": "1000000"}
SMALL_BATCHES = {"batch.size": "16384", "linger.ms": "5"}


@dataclass(frozen=True, slots=True)
class Produce:
    """librdkafka produces; `client` are its settings besides bootstrap.servers."""

    value_bytes: int
    client: dict[str, str]
    rate: float = 0
    """Records per second; 0: as fast as the target accepts them."""
    one_at_a_time: bool = False
    """Each record is sent when the one before is acknowledged."""
    end_to_end: bool = False
    """A consumer reads at the same time, for the time from produce to receipt."""
    partitions: int = PARTITIONS
    producers: int = 1
    """Clients, each for its share of the partitions, or, if there are more of them, each for all partitions."""


@dataclass(frozen=True, slots=True)
class JavaProduce:
    """org.apache.kafka.tools.ProducerPerformance produces; `client` are its producer's settings."""

    value_bytes: int = 1000
    client: dict[str, str] = field(default_factory=dict)
    partitions: int = PARTITIONS


@dataclass(frozen=True, slots=True)
class Consume:
    """`readers` consumers, a process each, read one topic from the start."""

    readers: int
    value_bytes: int = 1000


@dataclass(frozen=True, slots=True)
class CatchUp:
    """One consumer reads from the start while a producer appends at `rate` and another consumer follows the end."""

    rate: float = 1000
    value_bytes: int = 1000


@dataclass(frozen=True, slots=True)
class BesideReplay:
    """`produce` while a consumer reads a topic with history from the start, again and again."""

    produce: Produce


Load = Produce | JavaProduce | Consume | CatchUp | BesideReplay


@dataclass(frozen=True, slots=True)
class Row:
    """One line per target in the table."""

    name: str
    title: str
    load: Load


def _librdkafka(**client: str) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in client.items()}


IDEMPOTENT = _librdkafka(enable_idempotence="true")
ONE = Produce(
    1_000,
    IDEMPOTENT | {"linger.ms": "0", "max.in.flight": "1", "acks": "all"},
    one_at_a_time=True,
    end_to_end=True,
)
PACED = Produce(1_000, IDEMPOTENT | {"linger.ms": "5"}, rate=1_000, end_to_end=True)
ROWS = (
    Row("10k", "10 KB values, 1 MB batches, idempotent", Produce(10_000, IDEMPOTENT | MEGABYTE_BATCHES)),
    Row("1k", "1 KB values, 1 MB batches, idempotent", Produce(1_000, IDEMPOTENT | MEGABYTE_BATCHES)),
    Row(
        "16kib",
        "1 KB values, 16 KiB batches, linger 5 ms, idempotent",
        Produce(1_000, IDEMPOTENT | SMALL_BATCHES),
    ),
    Row("16kib-12", "the same, 12 producers", Produce(1_000, IDEMPOTENT | SMALL_BATCHES, producers=12)),
    Row("plain", "10 KB values, 1 MB batches, not idempotent", Produce(10_000, MEGABYTE_BATCHES)),
    Row(
        "one",
        "one 1 KB record at a time, acks=all, max.in.flight=1",
        ONE,
    ),
    Row("one-5s", "one 1 KB record at a time, 5 records/s", replace(ONE, rate=5)),
    Row("paced", "1 KB values, 1,000 records/s, linger 5 ms, idempotent", PACED),
    Row(
        "paced-plain",
        "1 KB values, 1,000 records/s, librdkafka's defaults: linger 5 ms, not idempotent",
        replace(PACED, client={}),
    ),
    Row(
        "many",
        "1 KB values, 50 producers of 20 records/s, linger 5 ms, idempotent",
        replace(PACED, producers=50, end_to_end=False),
    ),
    Row("paced-replay", "1 KB values, 1,000 records/s, while another consumer replays", BesideReplay(PACED)),
    Row("java", "Java ProducerPerformance, 1 kB records, defaults", JavaProduce()),
    Row("java-1p", "Java ProducerPerformance, 1 kB records, defaults, one partition", JavaProduce(partitions=1)),
    Row(
        "java-1p-1",
        "the same, max.in.flight=1",
        JavaProduce(partitions=1, client={"max.in.flight.requests.per.connection": "1"}),
    ),
    Row(
        "java-1p-512k",
        "the same, batch.size=524288, linger 50 ms",
        JavaProduce(partitions=1, client={"batch.size": "524288", "linger.ms": "50"}),
    ),
    Row("read-1", "consume from the start, 1 reader", Consume(1)),
    Row("read-4", "consume from the start, 4 readers", Consume(4)),
    Row("read-16", "consume from the start, 16 readers", Consume(16)),
    Row("catch-up", "read from the start during 1,000 records/s", CatchUp()),
)


def pick(names: str | None) -> list[Row]:
    """The rows of a comma-separated list, in the order of ROWS; all of them for None. ConfigError for unknown names."""
    if names is None:
        return list(ROWS)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := set(wanted) - {row.name for row in ROWS}:
        raise ConfigError(f"unknown rows: {', '.join(sorted(unknown))} (known: {', '.join(row.name for row in ROWS)})")
    return [row for row in ROWS if row.name in wanted]
