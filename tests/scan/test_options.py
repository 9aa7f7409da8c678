"""Options of a scan: what is accepted, what it means, and how refusals name it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.metastore.api.read import OffsetKind
from headrace.scan.errors import OptionError
from headrace.scan.options import (
    COLUMNS,
    HEADERS,
    OPTIONS,
    AtOffset,
    AtTimestamp,
    AtTimestamps,
    parse_options,
    settings_of,
)
from headrace.scan.partitions import Assign, Subscribe, SubscribePattern

TOPIC = {"subscribe": "orders"}


def parse(streaming: bool = False, **options: Any) -> Any:
    return parse_options(TOPIC | {name: str(value) for name, value in options.items()}, streaming=streaming)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    batch, stream = parse(), parse(streaming=True)
    assert (batch.starting, batch.ending) == (OffsetKind.EARLIEST, OffsetKind.LATEST)
    assert stream.starting == OffsetKind.LATEST
    assert batch.columns == COLUMNS
    assert batch.fail_on_data_loss
    assert batch.min_partitions is None
    assert not batch.latest_if_unmatched


def test_partitions_are_chosen_in_one_of_three_ways() -> None:
    assert parse_options({"subscribe": "a, b,a"}, streaming=False).selection == Subscribe(("a", "b"))
    assert parse_options({"subscribePattern": "a.*"}, streaming=False).selection == SubscribePattern("a.*")
    assert parse_options({"assign": '{"a":[0,2]}'}, streaming=False).selection == Assign({"a": (0, 2)})


def test_bounds() -> None:
    assert parse(startingOffsets="LATEST").starting == OffsetKind.LATEST
    assert parse(startingOffsets='{"a":{"0":23,"1":-2}}').starting == AtOffset({("a", 0): 23, ("a", 1): -2})
    assert parse(endingOffsets='{"a":{"0":-1}}').ending == AtOffset({("a", 0): -1})
    assert parse(startingTimestamp=5, startingOffsets="latest").starting == AtTimestamp(5)
    by_timestamp = parse(endingOffsetsByTimestamp='{"a":{"0":7}}', endingOffsets="latest")
    assert by_timestamp.ending == AtTimestamps({("a", 0): 7})


def test_names_of_options_have_no_case_as_spark_passes_them() -> None:
    scan = parse_options({"SUBSCRIBE": "a", "includeheaders": "TRUE", "failondataloss": "false"}, streaming=False)
    assert scan.columns == (*COLUMNS, HEADERS)
    assert not scan.fail_on_data_loss


def test_columns_are_in_the_asked_order() -> None:
    assert parse(columns="value,offset").columns == ("value", "offset")


def test_delays_have_units() -> None:
    for text, ms in {"15m": 900_000, "30s": 30_000, "500ms": 500, "2 h": 7_200_000, "70": 70}.items():
        assert parse(streaming=True, maxTriggerDelay=text).max_trigger_delay_ms == ms


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "give exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "a", "assign": "{}"}, "give exactly one of"),
        ({"subscribe": " , "}, "subscribe is empty"),
        ({"assign": "[1]"}, "assign must be a JSON object"),
        ({"assign": '{"a":["0"]}'}, 'assign must look like {"topic":[0,1]}'),
        (TOPIC | {"startingOffsets": "soon"}, "startingOffsets is not JSON: 'soon'"),
        (TOPIC | {"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets: not a partition with a number: a '0': -3"),
        (TOPIC | {"startingOffsets": '{"a":5}'}, 'startingOffsets must look like {"topic":{"0":23}}'),
        (TOPIC | {"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        (TOPIC | {"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets cannot be -2"),
        (TOPIC | {"startingTimestamp": "now"}, "startingTimestamp must be an integer of at least 0: 'now'"),
        (TOPIC | {"failOnDataLoss": "no"}, "failOnDataLoss must be one of true, false: 'no'"),
        (TOPIC | {"columns": "value,val"}, "columns: no such column: val"),
        (TOPIC | {"minPartitions": "0"}, "minPartitions must be an integer of at least 1"),
        (TOPIC | {"splitBytes": "5"}, "splitBytes must be an integer of at least 1048576"),
        (TOPIC | {"startingOffset": "latest"}, "unknown option: startingOffset (did you mean startingOffsets?)"),
        (TOPIC | {"kafka.security.protocol": "SSL"}, "kafka.security.protocol is for Spark's Kafka source"),
        (TOPIC | {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is an option of a stream read only"),
    ],
)
def test_a_refusal_names_the_option(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_options(options, streaming=False)
    assert reason in str(refused.value)


def test_an_ending_belongs_to_a_batch() -> None:
    with pytest.raises(OptionError, match="endingOffsets is an option of a batch read only"):
        parse(streaming=True, endingOffsets="latest")
    assert parse_options(TOPIC | {"endingOffsets": "latest"}, streaming=None)


def test_options_of_a_kafka_consumer_that_change_nothing_are_accepted() -> None:
    assert parse(**{"kafkaConsumer.pollTimeoutMs": 5, "groupIdPrefix": "x"})


def test_settings_come_from_options_then_from_the_environment() -> None:
    environ = {"HEADRACE_METASTORE_URL": "postgresql://env", "HEADRACE_BUCKET": "s3://env"}
    settings = settings_of(TOPIC | {"bucket": "s3://option/x", "s3.endpoint": "http://s3"}, environ)
    assert (settings.metastore_url, settings.bucket) == ("postgresql://env", "s3://option/x")
    assert settings.s3_endpoint == "http://s3"
    for name in ("azure.endpoint", "gcs.endpoint"):
        given = TOPIC | {"bucket": "az://account1/container", name.title(): "https://private"}
        parse_options(given, streaming=False)
        assert getattr(settings_of(given, environ), name.replace(".", "_")) == "https://private"
    with pytest.raises(OptionError, match="bucket is not set: give the option bucket, or HEADRACE_BUCKET"):
        settings_of({"metastore.url": "postgresql://x"}, {})


def test_every_option_has_a_meaning() -> None:
    assert all(option.meaning and option.reads in ("batch", "stream", "both") for option in OPTIONS.values())
