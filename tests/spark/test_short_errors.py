"""A wrong name ends a query with one line about it, and not with Headrace's frames."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from headrace.scan.errors import OptionError
from headrace.spark import batch
from headrace.spark.short_errors import short_errors
from headrace.spark.source import HeadraceDataSource
from headrace.storage.errors import NotFoundError


def _deep(depth: int) -> None:
    if depth:
        _deep(depth - 1)
    try:
        raise ValueError("the cause")
    except ValueError as error:
        raise NotFoundError("topic does not exist: topic=ordres") from error


def _shown(call: Any) -> list[str]:
    with pytest.raises((NotFoundError, OptionError)) as failed:
        call()
    frames = traceback.format_exception(failed.value)
    return "".join(frames).splitlines()


def test_frames_and_causes_are_left_out() -> None:
    lines = _shown(lambda: short_errors(_deep)(20))
    assert lines[-1].endswith("NotFoundError: topic does not exist: topic=ordres")
    assert not [line for line in lines if "in _deep" in line or "the cause" in line]


def test_other_errors_keep_their_frames() -> None:
    with pytest.raises(ZeroDivisionError) as failed:
        short_errors(lambda: 1 // 0)()
    assert failed.traceback[-1].name == "<lambda>"


def test_an_unknown_topic_and_an_unknown_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "cluster_settings", lambda *_: _deep(20))
    source = HeadraceDataSource({"subscribe": "ordres"})
    lines = _shown(source.reader(None).partitions)  # type: ignore[arg-type]  # the schema is not looked at
    assert lines[-1].endswith("topic does not exist: topic=ordres")
    assert len(lines) <= 10, "frames of the caller and of one method"
    assert len(_shown(HeadraceDataSource({"subscribe": "x", "startingoffset": "1"}).schema)) <= 10
