"""505 requests of eight real clients: headers, and bodies of every API that Headrace has a row for."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kio.schema.request_header.v2.header import RequestHeader

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.fetch_codec import decode_fetch
from headrace.protocol.frames import read_request_header
from headrace.protocol.produce_codec import decode_produce
from headrace.protocol.typed import schema
from headrace.storage.errors import InvalidError
from tests.protocol.client_vectors import Vector, vectors
from tests.protocol.codec_views import fetch_view, kio_fetch_view, kio_produce_view, produce_view
from tests.protocol.kio_entities import kio_read, kio_write

SERVED = [v for v in vectors() if v.api_key in APIS]
FLEXIBLE = [v for v in SERVED if v.version >= APIS[v.api_key].first_flexible]


def _name(vector: Vector) -> str:
    return f"{vector.label}-{vector.api_name}-{vector.version}"


def test_the_vectors_are_all_there() -> None:
    assert len(vectors()) == 505
    assert len({(v.api_key, v.version) for v in vectors()}) == 150
    never_captured = {
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
    }
    assert {v.api_key for v in SERVED} == set(APIS) - never_captured


def test_every_header_is_read() -> None:
    for vector in vectors():
        header = read_request_header(memoryview(vector.frame))
        assert (header.api_key, header.api_version) == (vector.api_key, vector.version)
        client_id_bytes = int.from_bytes(vector.frame[8:10], "big")
        assert header.client_id == vector.frame[10 : 10 + client_id_bytes].decode()


def test_every_version_of_a_served_api_is_in_the_table() -> None:
    for vector in SERVED:
        assert APIS[vector.api_key].serves(vector.version), _name(vector)


@pytest.mark.parametrize("vector", [v for v in SERVED if v.api_key not in (ApiKey.PRODUCE, ApiKey.FETCH)], ids=_name)
def test_typed_requests_decode_as_kio_does_and_survive_a_round_trip(vector: Vector) -> None:
    found = schema(vector.api_key, vector.version)
    entity = found.decode(vector.body)
    assert entity == kio_read(found.request_type, _without_surplus(vector))
    assert kio_write(entity) == _without_surplus(vector)


@pytest.mark.parametrize("vector", [v for v in SERVED if v.api_key == ApiKey.PRODUCE], ids=_name)
def test_produce_requests_decode_as_kio_does(vector: Vector) -> None:
    theirs = kio_read(schema(ApiKey.PRODUCE, vector.version).request_type, bytes(vector.body))
    assert produce_view(decode_produce(vector.body, vector.version)) == kio_produce_view(theirs)


@pytest.mark.parametrize("vector", [v for v in SERVED if v.api_key == ApiKey.FETCH], ids=_name)
def test_fetch_requests_decode_as_kio_does(vector: Vector) -> None:
    theirs = kio_read(schema(ApiKey.FETCH, vector.version).request_type, bytes(vector.body))
    assert fetch_view(decode_fetch(vector.body, vector.version)) == kio_fetch_view(theirs)


def _without_surplus(vector: Vector) -> bytes:
    """The body; without the byte that librdkafka adds to AlterUserScramCredentials."""
    adds_one = vector.api_key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS and vector.label.startswith("rdk")
    return bytes(vector.body[:-1] if adds_one else vector.body)


def _decode(vector: Vector, body: bytes) -> object:
    if vector.api_key == ApiKey.PRODUCE:
        return produce_view(decode_produce(memoryview(body), vector.version))
    if vector.api_key == ApiKey.FETCH:
        return fetch_view(decode_fetch(memoryview(body), vector.version))
    return schema(vector.api_key, vector.version).decode(body)


@pytest.mark.requirement("X16")
@pytest.mark.parametrize("release", ["java43", "java42"])
def test_a_thread_of_kafka_streams_joins_says_its_tasks_and_leaves(release: str) -> None:
    """The topology is that of two words counted in pairs: two repartition topics, and state with a standby."""
    said = [
        schema(vector.api_key, vector.version).decode(vector.body)
        for vector in vectors()
        if vector.label == f"{release}.streams"
    ]
    first, last = said[0], said[-1]
    assert (first.member_epoch, first.rebalance_timeout, first.active_tasks) == (0, timedelta(minutes=5), ())
    assert (first.user_endpoint.host, first.user_endpoint.port) == ("host-1", 8080)
    assert [(tag.key, tag.value) for tag in first.client_tags] == [("zone", "a")]
    subtopologies = {each.subtopology_id: each for each in first.topology.subtopologies}
    assert [subtopologies[name].source_topics for name in "012"] == [("rekeyed-left",), ("rekeyed-right",), ()]
    joined = subtopologies["2"]
    read = [topic.name for topic in joined.repartition_source_topics]
    assert read == [name for each in "01" for name in subtopologies[each].repartition_sink_topics]
    assert [sorted(group.repartition_source_topics) for group in joined.copartition_groups] == [[0, 1]]
    assert len(joined.state_changelog_topics) == 3
    (both,) = (each for each in said if each.standby_tasks)
    assert {each.subtopology_id for each in both.active_tasks} == {"0", "1", "2"}
    assert [(each.subtopology_id, sorted(each.partitions)) for each in both.standby_tasks] == [("2", [1, 2])]
    assert (last.member_epoch, last.topology, last.active_tasks) == (-1, None, None)


def test_an_unknown_tag_changes_nothing() -> None:
    for vector in FLEXIBLE:
        body = bytes(vector.body)
        assert body[-1] == 0, "a request without tags ends with an empty tag section"
        newer = body[:-1] + bytes.fromhex("01c80103") + b"new"
        assert _decode(vector, newer) == _decode(vector, body), _name(vector)


def test_a_tag_of_the_header_is_skipped() -> None:
    for vector in FLEXIBLE:
        frame = vector.frame
        start = read_request_header(memoryview(frame)).body_start
        newer = frame[: start - 1] + bytes.fromhex("01c80103") + b"new" + frame[start:]
        header = read_request_header(memoryview(newer))
        assert newer[header.body_start :] == vector.body


def test_every_truncation_is_refused() -> None:
    for vector in {(v.api_key, v.version): v for v in SERVED}.values():
        body = _without_surplus(vector)
        for length in range(len(body)):
            with pytest.raises(InvalidError, match="malformed request"):
                _decode(vector, body[:length])


def test_librdkafka_ends_a_request_with_one_byte_too_many() -> None:
    """AlterUserScramCredentials, which Kafka accepts: bytes left over are no error."""
    (vector,) = (v for v in vectors() if v.api_key == 51 and v.label.startswith("rdk"))
    assert vector.body[-2:] == b"\0\0"
    assert schema(51, vector.version).decode(vector.body) == schema(51, vector.version).decode(vector.body[:-1])


def test_headers_match_kio() -> None:
    for vector in FLEXIBLE:
        start = read_request_header(memoryview(vector.frame)).body_start
        theirs = kio_read(RequestHeader, vector.frame[:start])
        ours = read_request_header(memoryview(vector.frame))
        assert ours[:4] == (
            theirs.request_api_key,
            theirs.request_api_version,
            theirs.correlation_id,
            theirs.client_id,
        )
