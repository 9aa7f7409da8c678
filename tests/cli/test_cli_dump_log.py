"""`headrace dump-log`: the seed's lines, from the metadata log and from segment files."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import psycopg
import pytest

from headrace.cli.dump_log import file_lines, framed_lines, metadata_payload
from headrace.cli.main import main
from headrace.cli.record_json import payload_line, type_name
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.kip631_records import (
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from headrace.metastore.log.records import encode_record, record_types
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import CorruptError
from headrace.storage.records.codec import Record, encode_batch
from tests.cli.test_cli_storage import main_in_thread
from tests.storage.segments import Placed, lay_out

TOPIC_ID = uuid.UUID(int=77)


def _payload(line: str) -> dict[str, object]:
    _, _, text = line.partition("payload: ")
    decoded: dict[str, object] = json.loads(text)
    return decoded


@pytest.mark.requirement("C11.3")
def test_lines_are_as_the_seed_shows_them() -> None:
    topic_id = uuid.UUID("194feb45-76c5-1851-a926-52a35d8a71da")
    assert payload_line(encode_record(TopicRecord(topic_name="bar", topic_id=topic_id))) == (
        'payload: {"type":"TOPIC_RECORD","version":0,"data":{"topicName":"bar","topicId":"GU_rRXbFGFGpJlKjXYpx2g"}}'
    )
    change = PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=-1)
    assert _payload(payload_line(encode_record(change))) == {
        "type": "PARTITION_CHANGE_RECORD",
        "version": 0,
        "data": {"topicId": "GU_rRXbFGFGpJlKjXYpx2g", "leader": -1, "partitionId": 0},
    }
    partition = PartitionRecord(
        partition_id=0,
        topic_id=topic_id,
        replicas=(1,),
        isr=(1,),
        removing_replicas=(),
        adding_replicas=(),
        leader=1,
        leader_epoch=0,
    )
    data = _payload(payload_line(encode_record(partition)))["data"]
    assert isinstance(data, dict)
    assert data["replicas"] == data["isr"] == [1]


@pytest.mark.requirement("C11.3")
def test_every_record_type_has_a_name_of_kafkas_form() -> None:
    names = [type_name(cls) for cls in record_types()]
    assert len(set(names)) == len(names) >= 15
    assert all(name.endswith("_RECORD") and name == name.upper() for name in names)
    assert type_name(FenceBrokerRecord) == "FENCE_BROKER_RECORD"


@pytest.mark.requirement("C11.3")
def test_record_metadata_can_be_left_out_and_batch_metadata_stays() -> None:
    records = [encode_record(FenceBrokerRecord(broker_id=1, broker_epoch=epoch)) for epoch in range(3)]
    whole = list(framed_lines(records, 7, skip_record_metadata=False))
    bare = list(framed_lines(records, 7, skip_record_metadata=True))
    assert whole[0] == bare[0] == f"baseOffset: 7 lastOffset: 9 count: 3 size: {sum(map(len, records))}"
    assert [line.split()[2] for line in whole[1:]] == ["7", "8", "9"]
    assert [line.split("payload")[0] for line in bare[1:]] == [" ", " ", " "]


def test_a_record_that_cannot_be_decoded_is_named_and_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    good = encode_record(FenceBrokerRecord(broker_id=1, broker_epoch=0))
    lines = list(framed_lines([b"\x00\x63\x00", good], 0, skip_record_metadata=True))
    assert "not decoded: unknown metadata record type: record_type=99" in lines[1]
    assert _payload(lines[2])["type"] == "FENCE_BROKER_RECORD"
    assert "record_type=99" in capsys.readouterr().err


@pytest.mark.requirement("C11.3", "L6")
def test_a_batch_shows_its_delete_horizon() -> None:
    """From when on its delete markers may go, and the records' own times."""
    plain = encode_batch([Record(5, 1_000, b"k", b"v")], base_offset=5)
    cleaned = encode_batch([Record(6, 1_001, b"gone", None)], base_offset=6, delete_horizon_ms=9_000)
    data, _ = lay_out([Placed(TOPIC_ID, 3, plain), Placed(TOPIC_ID, 3, cleaned)])
    lines = list(file_lines(data, decoder=None, skip_record_metadata=False))
    assert "isControl: false deleteHorizonMs: OptionalLong.empty position: " in lines[2]
    assert "isControl: false deleteHorizonMs: OptionalLong[9000] position: " in lines[4]
    assert lines[5] == "| offset: 6 CreateTime: 1001 keySize: 4 valueSize: -1 headerKeys: []"


@pytest.mark.requirement("C11.3")
def test_segment_files_show_footer_batches_and_decoded_records() -> None:
    framed = encode_record(FenceBrokerRecord(broker_id=4, broker_epoch=9))
    batch = encode_batch([Record(5, 1_000, None, framed), Record(6, 1_001, None, framed)], base_offset=5)
    data, (position,) = lay_out([Placed(TOPIC_ID, 3, batch)])
    lines = list(file_lines(data, decoder=metadata_payload, skip_record_metadata=False))
    assert lines[0] == f"segment file: size: {len(data)} partitions: 1"
    assert lines[1].startswith("topicId: AAAAAAAAAAAAAAAAAAAATQ "), "as everywhere else"
    assert f"partition: 3 position: {position} size: {len(batch)} batches: 1 records: 2" in lines[1]
    assert "baseOffset: 5 lastOffset: 6 count: 2 baseSequence: -1" in lines[2]
    assert lines[3].startswith("| offset: 5 CreateTime: 1000 keySize: -1")
    assert _payload(lines[4])["data"] == {"brokerId": 4, "brokerEpoch": 9}
    assert [
        line.partition("payload")[0] for line in file_lines(data, decoder=metadata_payload, skip_record_metadata=True)
    ][3:] == [
        " ",
        " ",
    ]
    with pytest.raises(CorruptError):
        list(file_lines(data[:-1], decoder=metadata_payload, skip_record_metadata=False))


@pytest.mark.requirement("C11.3")
async def test_the_command_prints_the_log_of_a_metastore(
    metastore: PostgresMetastore, metastore_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = await metastore.cluster.metadata_head()
    assert await metastore.topics.create_topics(head, [NewTopic("orders", TOPIC_ID, 2, {"retention.ms": "1"})])
    flags = ["--cluster-metadata-decoder", "--skip-record-metadata", "--metastore-url", metastore_url]
    assert main_in_thread(["dump-log", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    end = await metastore.cluster.metadata_head()
    assert main_in_thread(["dump-log", *flags, "--start-offset", str(end)]) == 0
    assert capsys.readouterr().out == ""
    assert main_in_thread(["dump-log", *flags, "--start-offset", str(end + 1)]) == 1
    assert f"the metadata log ends at {end}" in capsys.readouterr().err
    assert [_payload(line)["type"] for line in lines[1:]][head:] == [
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
    ]


def test_the_command_reads_paths_and_urls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, _ = lay_out([Placed(TOPIC_ID, 0, encode_batch([Record(0, 1, b"k", b"v")], base_offset=0))])
    file = tmp_path / "segment"
    file.write_bytes(data)
    for address in (str(file), file.as_uri()):
        assert main(["dump-log", "--files", address]) == 0
        assert "payload" not in (out := capsys.readouterr().out)
        assert "keySize: 1 valueSize: 1" in out
    assert main(["dump-log", "--files", str(tmp_path / "missing")]) == 1
    assert "cannot read" in capsys.readouterr().err
    assert main(["dump-log"]) == 1


def test_secrets_and_bytes_are_printed_as_base64() -> None:
    record = UserScramCredentialRecord(user_name="anna", credential_infos=())
    assert _payload(payload_line(encode_record(record)))["data"] == {"userName": "anna", "credentialInfos": []}


async def test_a_newer_tool_on_an_older_cluster_says_which_tool_to_use(
    metastore: PostgresMetastore, metastore_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with await psycopg.AsyncConnection.connect(metastore_url, autocommit=True) as connection:
        await connection.execute("DELETE FROM schema_migrations WHERE name = (SELECT max(name) FROM schema_migrations)")
    assert main_in_thread(["dump-log", "--cluster-metadata-decoder", "--metastore-url", metastore_url]) == 1
    assert "or the version of the agents that use it: missing=" in capsys.readouterr().err
