"""A formatted cluster for the doctor, the doctor as a command, and the S3 fixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import OBJECT_KEY, render
from headrace.storage.objects.directory import DirectoryStore
from tests.cli.doctor.world import ORDER, Doctor, Line
from tests.fixtures_s3 import aws_credentials, moto_url, real_s3_url

__all__ = ["aws_credentials", "moto_url", "real_s3_url"]


@pytest.fixture
async def places(metastore_url: str, tmp_path: Path) -> list[str]:
    """Flags that name a formatted database and a formatted bucket of one cluster."""
    metastore = await PostgresMetastore.open(metastore_url, Settings(metastore_url=metastore_url))
    await metastore.close()
    (tmp_path / "bucket").mkdir()
    await DirectoryStore(tmp_path / "bucket", SystemClock()).put(OBJECT_KEY, render(metastore.cluster_id))
    return ["--metastore-url", metastore_url, "--bucket", (tmp_path / "bucket").as_uri()]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    def run(*flags: str) -> dict[str, Line]:
        capsys.readouterr()
        status = main(["doctor", "--json", *flags])
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        assert status == any(row["level"] == "bad" for row in rows)
        rows.sort(key=lambda row: ORDER.index(row["level"]))
        return {f"{row['area']} {row['check']}": (row["level"], row["found"], row["to_do"]) for row in rows}

    return run
