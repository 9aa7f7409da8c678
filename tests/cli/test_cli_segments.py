"""`headrace segments` on the lifecycle tables of a real Postgres."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from headrace.cli import segments
from headrace.cli.main import main
from headrace.metastore.api.segment_states import base64url
from tests.metastore.lifecycle_rows import TOPIC, LifecycleRows, one_life

pytestmark = pytest.mark.requirement("R3")


@pytest.fixture
def url(metastore_url: str) -> str:
    with psycopg.connect(metastore_url) as connection:
        one_life(LifecycleRows(connection))
    return metastore_url


def run(capsys: pytest.CaptureFixture[str], url: str, action: str, *flags: str, status: int = 0) -> str:
    arguments = ["segments", action, "--topic", base64url(TOPIC), "--metastore-url", url, *flags]
    assert main(arguments) == status
    return capsys.readouterr().out


def rows_of(capsys: pytest.CaptureFixture[str], url: str, action: str, *flags: str, status: int = 0) -> Any:
    return json.loads(run(capsys, url, action, "--json", *flags, status=status))


def test_list_shows_live_keys_and_with_all_the_tombstones(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    live = rows_of(capsys, url, "list")
    assert [(row["start"], row["end"], row["epoch"], row["state"]) for row in live] == [
        (1_000, 1_999, 4, "COPY_SEGMENT_FINISHED"),
        (2_000, 2_999, 5, "COPY_SEGMENT_STARTED"),
    ]
    every = rows_of(capsys, url, "list", "--all")
    assert [(row["key"], row["state"]) for row in every][:2] == [
        (f"{base64url(TOPIC)}:0:999:3", "TOMBSTONE"),
        (f"{base64url(TOPIC)}:0:999:4", "TOMBSTONE"),
    ]
    assert {(row["job"], row["node"], row["cause"]) for row in every} == {(11, 4, "UPLOAD")}
    table = run(capsys, url, "list")
    assert "START   END  EPOCH  STATE" in table.splitlines()[0]
    assert "deleted: DELETE_PARTITION_STARTED epoch=6 end_offset=3000" in table


def test_list_has_the_highest_remote_offset_of_each_leader_epoch(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["highest_remote_offset"] for row in rows_of(capsys, url, "list")} == {None}
    assert "highest remote offset" not in run(capsys, url, "list")
    with psycopg.connect(url) as connection:
        rows = LifecycleRows(connection, next_offset=12, next_audit_offset=10)
        rows.segment(2_499, 6, 1, start=2_000)
        rows.segment(3_499, 6, 1, start=2_500)
        connection.execute("UPDATE remote_segments SET live_extents = 1 WHERE end_offset IN (1999, 2499, 3499)")
        connection.execute("UPDATE remote_segments SET leader_epoch = 8 WHERE end_offset = 3499")
    shown = run(capsys, url, "list")
    assert "leader epoch 3: highest remote offset 2499\nleader epoch 8: highest remote offset 3499\n" in shown
    found = {(row["leader_epoch"], row["highest_remote_offset"]) for row in rows_of(capsys, url, "list")}
    assert found == {(3, 2_499), (8, 3_499)}


def test_pages_show_each_key_once(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = rows_of(capsys, url, "list", "--all")
    for page in (2, 3, 4):
        monkeypatch.setattr(segments, "PAGE_ROWS", page)
        assert rows_of(capsys, url, "list", "--all") == every


def test_show_names_the_readable_segment_first(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE remote_segments SET live_extents = 1 WHERE end_offset = 1999")
        rows = LifecycleRows(connection, next_offset=12, next_audit_offset=10)
        rows.segment(1_999, 6, 0, start=1_000)
    found = rows_of(capsys, url, "show", "--offset", "1500")
    assert [(row["epoch"], row["readable"]) for row in found] == [(4, True), (6, False)]
    assert [row["epoch"] for row in rows_of(capsys, url, "show", "--offset", "2500", status=1)] == [5]
    assert rows_of(capsys, url, "show", "--offset", "9999", status=1) == []


def test_history_tells_what_happened_to_a_range(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    every = rows_of(capsys, url, "history")
    assert [row["offset"] for row in every] == list(range(10))
    assert every[-1]["state"] == "DELETE_PARTITION_STARTED"
    assert every[-1]["key"] == f"{base64url(TOPIC)}:0"
    middle = rows_of(capsys, url, "history", "--from", "1000", "--to", "1999")
    assert [(row["start"], row["end"], row["state"]) for row in middle] == [
        (1_000, 1_999, "COPY_SEGMENT_STARTED"),
        (1_000, 1_999, "COPY_SEGMENT_FINISHED"),
        (None, 3_000, "DELETE_PARTITION_STARTED"),
    ]
    first = rows_of(capsys, url, "history", "--to", "999")
    assert [row["offset"] for row in first] == [0, 1, 2, 3, 5, 6, 9]


def test_a_topic_that_is_not_there_is_named(metastore_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["segments", "list", "--topic", "orders", "--metastore-url", metastore_url]) == 1
    assert "topic does not exist: orders" in capsys.readouterr().err
