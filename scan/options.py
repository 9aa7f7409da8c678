"""The options of a scan, with the names and meanings of Spark's Kafka source. Pure.

Place: the first step of a batch read, a stream and an export.
Invariant: an option that this version does not know is refused by name, and so is a value that does not fit; nothing
was read or written then. OPTIONS is the table that docs/start/SPARK.md shows (a test compares them).
Source: Spark's Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.config.declared import OF_BUCKETS, declared
from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.config.settings import Settings
from headrace.metastore.api.read import OffsetKind
from headrace.scan.errors import OptionError
from headrace.scan.partitions import Assign, Selection, Subscribe, SubscribePattern

MIB = 1024 * 1024
SPLIT_BYTES = 64 * MIB
READ_PIN_MS = 3_600_000
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
BOOTSTRAP = "kafka.bootstrap.servers"
"""Finds the cluster (cluster.py); no record is read or written by way of an agent."""
ISOLATION = "isolation.level"
_KAFKA_ISOLATION = "kafka.isolation.level"
"""Isolation levels by the names of Spark's Kafka source."""
IS_COMMITTED = {"read_committed": True, "read_uncommitted": False}
_SETTINGS = ("metastore.", *OF_BUCKETS)
"""Settings that may be given as options, by the beginnings of their names."""
_LONG_MAX = 2**63 - 1
_ACTION = {True: "read", False: "write"}


class Option(NamedTuple):
    """One option: where it applies, and what it does."""

    reads: str
    """"batch", "stream", or "both"."""
    meaning: str


OPTIONS: Mapping[str, Option] = {
    "subscribe": Option("both", "topics, separated by commas"),
    "subscribePattern": Option("both", "a pattern for names of topics (RE2: Java's without look-around)"),
    "assign": Option("both", 'partitions, as JSON: `{"orders":[0,1]}`'),
    "startingOffsets": Option(
        "both",
        "`earliest` (default of a batch), `latest` (default of a stream), or JSON with each partition"
        ' `{"orders":{"0":23,"1":-2}}`; -2 is earliest, -1 latest',
    ),
    "endingOffsets": Option("batch", "`latest` (default), or JSON as above, without -2"),
    "startingTimestamp": Option(
        "both", "milliseconds: from the first record that is not older; before startingOffsets"
    ),
    "endingTimestamp": Option("batch", "milliseconds: up to the first record that is not older, exclusive"),
    "startingOffsetsByTimestamp": Option("both", 'the same per partition, as JSON: `{"orders":{"0":1700000000000}}`'),
    "endingOffsetsByTimestamp": Option("batch", "the same per partition, as JSON"),
    "startingOffsetsByTimestampStrategy": Option(
        "both", "if no record is so new: `error` (default), or `latest`: begin at the end"
    ),
    "failOnDataLoss": Option(
        "both", "`true` (default): offsets that are not in the log (any more) are an error; `false`: they are left out"
    ),
    ISOLATION: Option(
        "both",
        "`read_committed` (default): no record of a transaction that was aborted or is open, and none after the first"
        " open one; `read_uncommitted`: all records. `kafka.isolation.level` is the same",
    ),
    "includeHeaders": Option("both", "`true`: a column `headers`; default `false`"),
    "columns": Option("both", "columns to read, separated by commas; others are not decoded. Default: all"),
    "minPartitions": Option("both", "at least so many Spark partitions, if there are so many offsets"),
    "splitBytes": Option("both", f"bytes of segment files that one task reads, at most (default {SPLIT_BYTES:,})"),
    "readPinMs": Option(
        "both",
        f"files that a read needs are kept this long (default {READ_PIN_MS:,}; at most the cluster's read.pin.max.ms)",
    ),
    "maxOffsetsPerTrigger": Option("stream", "at most so many offsets in a micro-batch, shared in proportion"),
    "minOffsetsPerTrigger": Option("stream", "wait for so many offsets, but not longer than maxTriggerDelay"),
    "maxTriggerDelay": Option("stream", "see minOffsetsPerTrigger; `15m` by default"),
}
IGNORED = frozenset(
    {"kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix"}
)
"""Options of Spark's Kafka source about its consumer, which does not exist here. In lower case."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """Offset per (topic, partition); an OffsetKind for a negative one."""

    offsets: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record with this timestamp (ms) or a later one, in each partition."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The same, with a timestamp per (topic, partition)."""

    timestamps: Mapping[tuple[str, int], int]


Bound = OffsetKind | AtOffset | AtTimestamp | AtTimestamps
"""EARLIEST, LATEST, or a place per partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """A checked set of options."""

    selection: Selection
    starting: Bound
    ending: Bound
    latest_if_unmatched: bool
    """Whether to begin at the end if no record is as new as a starting timestamp."""
    fail_on_data_loss: bool
    committed: bool
    """Isolation: read_committed."""
    columns: tuple[str, ...]
    min_partitions: int | None
    split_bytes: int
    read_pin_ms: int
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int


class GivenOptions:
    """The options that were given, by name in lower case; each is taken once."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): str(value) for name, value in options.items()}

    def text(self, name: str) -> str | None:
        value = self._options.get(name.lower())
        return None if value is None else value.strip()

    def choice(self, name: str, choices: Mapping[str, Any], default: Any) -> Any:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in choices:
            raise OptionError(f"{name} must be one of {', '.join(choices)}: {value!r}")
        return choices[value.lower()]

    def whole(self, name: str, least: int, default: int | None) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= _LONG_MAX:
            raise OptionError(f"{name} must be an integer of at least {least}: {value!r}")
        return number

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not found:
            raise OptionError(f"{name} is empty")
        return found

    def numbers(self, name: str, text: str, least: int) -> dict[tuple[str, int], int]:
        """`{"topic":{"0":23}}` as a mapping by (topic, partition)."""
        found: dict[tuple[str, int], int] = {}
        document = _json(name, text)
        for topic, partitions in document.items():
            if not isinstance(partitions, dict):
                raise OptionError(f'{name} must look like {{"topic":{{"0":23}}}}: {text!r}')
            for index, number in partitions.items():
                if not index.isdecimal() or type(number) is not int or not least <= number <= _LONG_MAX:
                    raise OptionError(f"{name}: not a partition with a number: {topic} {index!r}: {number!r}")
                found[topic, int(index)] = number
        return found


def parse_options(options: Mapping[str, str], *, streaming: bool | None) -> ScanOptions:
    """The options of a batch read or of a stream (None: not known yet, so options of both are accepted). OptionError.

    Settings among them are left to `settings_of`.
    """
    refuse_unknown(options, OPTIONS, streaming=streaming, ignored=IGNORED)
    given = GivenOptions(options)
    default_start = OffsetKind.LATEST if streaming else OffsetKind.EARLIEST
    booleans = {"true": True, "false": False}
    delay = given.text("maxTriggerDelay")
    return ScanOptions(
        selection=_selection(given),
        starting=_bound(given, "starting", default_start),
        ending=OffsetKind.LATEST if streaming else _bound(given, "ending", OffsetKind.LATEST),
        latest_if_unmatched=given.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, default=False
        ),
        fail_on_data_loss=given.choice("failOnDataLoss", booleans, default=True),
        committed=given.choice(
            ISOLATION, IS_COMMITTED, default=given.choice(_KAFKA_ISOLATION, IS_COMMITTED, default=True)
        ),
        columns=_columns(given, include_headers=given.choice("includeHeaders", booleans, default=False)),
        min_partitions=given.whole("minPartitions", 1, None),
        split_bytes=given.whole("splitBytes", MIB, SPLIT_BYTES) or SPLIT_BYTES,
        read_pin_ms=given.whole("readPinMs", 1_000, READ_PIN_MS) or READ_PIN_MS,
        max_offsets_per_trigger=given.whole("maxOffsetsPerTrigger", 1, None),
        min_offsets_per_trigger=given.whole("minOffsetsPerTrigger", 1, None),
        max_trigger_delay_ms=900_000 if delay is None else _duration_ms("maxTriggerDelay", delay),
    )


def settings_of(options: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """The settings for metastore and bucket: options under their own names, else HEADRACE_* variables. OptionError."""
    names = {name.lower(): name for name in declared() if name.startswith(_SETTINGS)}
    flags = {names[name.lower()]: value for name, value in options.items() if name.lower() in names}
    try:
        settings = load(environ=environ, flags=flags)
    except ConfigError as error:
        raise OptionError(str(error)) from error
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            variable = declared()[name].environment
            raise OptionError(f"{name} is not set: give the option {name}, or {variable} to the driver")
    return settings


def refuse_unknown(
    options: Mapping[str, str], table: Mapping[str, Option], *, streaming: bool | None, ignored: Collection[str]
) -> None:
    """OptionError names an option that is neither in the table nor a setting, or is of another kind of query."""
    known = {name.lower(): name for name in table}
    settings = {name.lower() for name in declared() if name.startswith(_SETTINGS)}
    for name in options:
        lower = name.lower()
        if lower == BOOTSTRAP or (lower == _KAFKA_ISOLATION and table is OPTIONS):
            continue
        if lower.startswith("kafka."):
            raise OptionError(
                f"option {name} is for Spark's Kafka source: segment files are read and written without a Kafka"
                f" client. Leave kafka.* options out, but {BOOTSTRAP} finds the cluster"
            )
        if lower in known:
            reads = table[known[lower]].reads
            if streaming is not None and reads not in ("both", "stream" if streaming else "batch"):
                raise OptionError(f"{known[lower]} is an option of a {reads} {_ACTION[table is OPTIONS]} only")
        elif lower not in settings and lower not in ignored:
            near = difflib.get_close_matches(lower, [*known, *settings], n=1)
            hint = f" (did you mean {known.get(near[0], near[0])}?)" if near else ""
            raise OptionError(f"unknown option: {name}{hint}")


def _selection(given: GivenOptions) -> Selection:
    topics, pattern, assign = given.names("subscribe"), given.text("subscribePattern"), given.text("assign")
    if sum(each is not None for each in (topics, pattern, assign)) != 1:
        raise OptionError("give exactly one of subscribe, subscribePattern and assign")
    if topics is not None:
        return Subscribe(topics)
    if pattern is not None:
        return SubscribePattern(pattern)
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, indexes in _json("assign", str(assign)).items():
        if not isinstance(indexes, list) or not all(type(index) is int and index >= 0 for index in indexes):
            raise OptionError(f'assign must look like {{"topic":[0,1]}}: {assign!r}')
        partitions[topic] = tuple(dict.fromkeys(indexes))
    return Assign(partitions)


def _bound(given: GivenOptions, end: str, default: OffsetKind) -> Bound:
    """`end` is "starting" or "ending". A timestamp for all comes before timestamps, and these before offsets."""
    timestamp = given.whole(f"{end}Timestamp", 0, None)
    if timestamp is not None:
        return AtTimestamp(timestamp)
    by_timestamp = given.text(f"{end}OffsetsByTimestamp")
    if by_timestamp is not None:
        return AtTimestamps(given.numbers(f"{end}OffsetsByTimestamp", by_timestamp, 0))
    name = f"{end}Offsets"
    text = given.text(name)
    if text is None:
        return default
    if text.lower() == "latest":
        return OffsetKind.LATEST
    if text.lower() == "earliest":
        if end == "ending":
            raise OptionError("endingOffsets cannot be earliest")
        return OffsetKind.EARLIEST
    offsets = given.numbers(name, text, OffsetKind.EARLIEST)
    if end == "ending" and OffsetKind.EARLIEST in offsets.values():
        raise OptionError("endingOffsets cannot be -2 (earliest)")
    return AtOffset(offsets)


def _columns(given: GivenOptions, *, include_headers: bool) -> tuple[str, ...]:
    possible = (*COLUMNS, HEADERS) if include_headers else COLUMNS
    asked = given.names("columns")
    if asked is None:
        return possible
    for name in asked:
        if name not in (*COLUMNS, HEADERS):
            raise OptionError(f"columns: no such column: {name} (there are {', '.join((*COLUMNS, HEADERS))})")
    return asked


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is not JSON: {text!r}: {error}") from error
    if not isinstance(document, dict):
        raise OptionError(f"{name} must be a JSON object: {text!r}")
    return document


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(name: str, text: str) -> int:
    """Parse a duration as Spark writes it: `15m`, `30s`, `500ms`; a number alone is milliseconds."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip() or "ms"
    if not digits.isdecimal() or unit not in _UNITS_MS:
        raise OptionError(f"{name} must be a duration such as 15m, 30s or 500ms: {text!r}")
    return int(digits) * _UNITS_MS[unit]
