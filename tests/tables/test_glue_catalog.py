"""AWS Glue as the catalog: a stand-in (moto) with the metadata, and files in a stand-in of S3.

Fault model: moto's Glue accepts each update. Glue itself refuses one that names another version of the table than the
newest; `CheckedVersions` does that here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.utils.config import Config

from headrace.config.settings import Settings
from headrace.tables.catalog import CatalogAddress
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from tests.fixtures_s3 import ACCESS_KEY, BUCKET, SECRET_KEY, aws_credentials, moto_url
from tests.spark.world import ScanWorld
from tests.tables.upkeep.upkeep_history import NOW_MS
from tests.tables.world import Tables, from_a_thread

__all__ = ["aws_credentials", "moto_url"]

pytestmark = [pytest.mark.requirement("X11"), pytest.mark.slow]


class CheckedVersions:
    """Glue's client, with updates that only succeed on the newest version. `before`: runs ahead of the next update."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.before: Any = contextlib.nullcontext
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def update_table(self, **request: Any) -> Any:
        before, self.before = self.before, contextlib.nullcontext
        before()
        table = self._client.get_table(DatabaseName=request["DatabaseName"], Name=request["TableInput"]["Name"])
        if request["VersionId"] != table["Table"]["VersionId"]:
            self.refused += 1
            raise self._client.exceptions.ConcurrentModificationException(
                {"Error": {"Code": "ConcurrentModificationException", "Message": "another version"}}, "UpdateTable"
            )
        return self._client.update_table(**request)


@pytest.fixture
def address(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> CatalogAddress:
    """The settings as TABLES.md has them: the type of the catalog is in pyiceberg's own configuration."""
    for name, value in {
        "TYPE": "glue",
        "GLUE__ENDPOINT": moto_url,
        "GLUE__REGION": "us-east-1",
        "GLUE__ACCESS_KEY_ID": ACCESS_KEY,
        "GLUE__SECRET_ACCESS_KEY": SECRET_KEY,
        "S3__ACCESS_KEY_ID": ACCESS_KEY,
        "S3__SECRET_ACCESS_KEY": SECRET_KEY,
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # pyiceberg reads it once per process
    settings = Settings(
        tables_catalog_name="lake",
        tables_warehouse=f"s3://{BUCKET}/lake",
        tables_namespace="glue_tests",
        s3_endpoint=moto_url,
        s3_region="us-east-1",
    )
    return CatalogAddress.of(settings)


async def test_a_table_is_made_appended_to_and_kept(world: ScanWorld, tables: Tables, address: CatalogAddress) -> None:
    tables.catalog = await asyncio.to_thread(address.open)
    glue = tables.catalog.catalog
    assert isinstance(glue, GlueCatalog)
    checked = glue.glue = CheckedVersions(glue.glue)
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", layout=["day"])
    for number in range(3):
        await world.write(key, number)
        assert (await tables.follow()).outcome is CommitOutcome.COMMITTED
    await tables.check()
    assert tables.catalog.names() == ["orders"]

    other = Tables(world, tables.folder)
    other.catalog = await asyncio.to_thread(address.open)
    await world.write(key, 3)
    checked.before = from_a_thread(other.follow)
    assert (await tables.round()).outcome is CommitOutcome.CONFLICT, "between the look at the table and its update"
    assert checked.refused == 1
    await tables.follow()
    await tables.check()

    report = TableUpkeep(tables.catalog, UpkeepTerms(files_min=2, snapshot_max_age_ms=1)).keep("orders", NOW_MS)
    assert report.rewritten[:2] == (4, 1)
    await tables.check()
    await asyncio.to_thread(tables.catalog.drop, "orders", purge=False)
    assert tables.catalog.names() == []
