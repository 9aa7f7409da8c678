"""`headrace dump-log --remote-log-metadata-decoder`: both logs from the tables, and files with their records."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from headrace.cli.main import main
from headrace.metastore.api.segment_states import base64url
from headrace.storage.records.codec import Record, encode_batch
from tests.metastore.lifecycle_rows import TOPIC, LifecycleRows, one_life
from tests.storage.segments import Placed, lay_out

pytestmark = pytest.mark.requirement("R9")
KEY = f"{base64url(TOPIC)}:0:1999:4"
GOLDEN = Path(__file__).parents[1] / "golden" / "lifecycle_v1.tsv"


def dump(capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert main(["dump-log", "--remote-log-metadata-decoder", *flags]) == 0
    return capsys.readouterr().out.splitlines()


def test_both_logs_are_printed(metastore_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with psycopg.connect(metastore_url) as connection:
        rows = LifecycleRows(connection)
        one_life(rows)
    first, *lines = dump(capsys, "--metastore-url", metastore_url)
    assert first == f"partition: {rows.partition}"
    assert [line.split(" payload: ")[1] == "null" for line in lines] == [False, True, True, False, False]
    assert f"| offset: 7 CreateTime: 1007 keySize: {len(KEY)} valueSize: " in lines[0]
    body = json.loads(lines[0].partition("payload: ")[2])
    assert (body["type"], body["version"]) == ("REMOTE_LOG_SEGMENT_METADATA_UPDATE_RECORD", 1)
    assert body["data"]["customMetadata"]["startOffset"] == 1_000
    assert (body["data"]["endOffset"], body["data"]["brokerLeaderEpoch"]) == (1_999, 4)
    audit = dump(capsys, "--audit", "--skip-record-metadata", "--metastore-url", metastore_url)
    assert len(audit) == 11
    assert audit[-1].startswith(f"key: {base64url(TOPIC)}:0 payload: ")


def test_a_file_with_such_records_and_a_damaged_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [bytes.fromhex(line.split("\t")[1]) for line in GOLDEN.read_text().splitlines()]
    records = [Record(n, 5, KEY.encode(), value) for n, value in enumerate([*values, b"\x01\x09\x01", b"\x02\x00\x01"])]
    records.append(Record(len(records), 5, None, values[0]))
    file = tmp_path / "segment"
    file.write_bytes(lay_out([Placed(TOPIC, 0, encode_batch(records, base_offset=0))])[0])
    lines = [line for line in dump(capsys, "--files", str(file)) if " payload: " in line]
    assert len(lines) == len(values) + 3
    assert "<not decoded: unknown lifecycle record: api_key=9>" in lines[-3]
    assert "<not decoded: unknown frame version of a lifecycle record: frame_version=2>" in lines[-2]
    assert "key: None payload: {" in lines[-1]
