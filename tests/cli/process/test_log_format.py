"""Log lines as JSON, and the first lines of a process."""

from __future__ import annotations

import io
import json
import logging
import re
from datetime import datetime
from typing import Any

import pytest

from headrace.cli.process import serve
from headrace.cli.process.logs import JsonFormatter, OneLineFormatter
from headrace.config.settings import Settings
from headrace.storage.errors import UnavailableError


def logged(template: str, *arguments: Any, error: Exception | None = None) -> dict[str, Any]:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("headrace.test")
    logger.addHandler(handler)
    logger.warning(template, *arguments, exc_info=error)
    assert lines.getvalue().count("\n") == 1, "one record, one line"
    found: dict[str, Any] = json.loads(lines.getvalue())
    return found


@pytest.mark.parametrize(
    ("template", "arguments", "fields"),
    [
        (
            "job ended: kind=%s attempt=%d seconds=%.1f",
            ("merge", 2, 0.5),
            {"kind": "merge", "attempt": 2, "seconds": 0.5},
        ),
        ("connection closed: peer=%s", ("h:1\n2026 CRITICAL x\u2028",), {"peer": "h:1\n2026 CRITICAL x\u2028"}),
        ("done by 100%% of %s: error=%s", ("agents", UnavailableError("down")), {"error": "down"}),
        ("client_id=%r", (None,), {"client_id": None}),
        ("nothing is named: %s", ("x",), {}),
        ("no arguments: key=value", (), {}),
    ],
)
def test_a_record_is_an_object_with_its_named_values(template: str, arguments: Any, fields: dict[str, Any]) -> None:
    line = logged(template, *arguments)
    assert line.get("fields", {}) == fields
    assert line["message"] == (template % arguments if arguments else template)
    assert (line["level"], line["logger"]) == ("WARNING", "headrace.test")
    assert line["timestamp"].endswith("+00:00")


def test_a_traceback_is_part_of_the_object() -> None:
    try:
        raise UnavailableError("postgres is away")
    except UnavailableError as error:
        line = logged("call failed: operation=%s", "commit", error=error)
    assert "Traceback" in line["exception"]
    assert line["exception"].endswith("UnavailableError: postgres is away")


def test_a_process_says_what_it_is_and_what_was_set(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(
        metastore_url="postgresql://user:open-sesame@db/headrace",
        bucket="s3://logs",
        broker_rack="zone-a",
        linger_ms=25,
    )
    with caplog.at_level(logging.INFO):
        serve._introduce(settings)
    first, *rest = caplog.messages
    assert first.startswith("process starts: version=")
    assert "zone=zone-a" in first
    assert rest == [
        "setting: broker.rack=zone-a",
        "setting: bucket=s3://logs",
        "setting: linger.ms=25",
        "setting: metastore.url=(hidden)",
    ]
    assert "open-sesame" not in caplog.text


def test_a_line_for_people_has_a_time_with_a_zone() -> None:
    record = logging.LogRecord("headrace.test", logging.INFO, "", 0, "started", (), None)
    record.created = 1_795_749_526.25
    found = OneLineFormatter().format(record)
    assert re.fullmatch(r"2026-11-2\d \d\d:\d\d:\d\d\.250[+-]\d\d:\d\d INFO headrace\.test started", found), found
    assert datetime.fromisoformat(found[:29]).timestamp() == record.created
