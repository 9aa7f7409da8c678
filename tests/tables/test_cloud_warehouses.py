"""Tables with their files on Azure Blob Storage and Google Cloud Storage: emulators of both, which Arrow writes to.

Fault model: none. The catalog is SQLite's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.config.settings import Settings
from headrace.tables.catalog import CatalogAddress
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from headrace.tables.warehouse import FILE_IO, AzureFileIO
from tests.fixtures_clouds import ACCOUNT, CONTAINER, GCS_BUCKET, azurite_url, fake_gcs_url
from tests.spark.world import ScanWorld
from tests.tables.upkeep.upkeep_history import NOW_MS
from tests.tables.world import Tables

__all__ = ["azurite_url", "fake_gcs_url"]

pytestmark = [pytest.mark.requirement("X15"), pytest.mark.slow]


@pytest.mark.parametrize("cloud", ["azure", "google"])
async def test_a_table_is_made_appended_to_and_kept(
    cloud: str, world: ScanWorld, tables: Tables, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("azurite_url" if cloud == "azure" else "fake_gcs_url")
    bucket = f"az://{ACCOUNT}/{CONTAINER}/lake" if cloud == "azure" else f"gs://{GCS_BUCKET}/lake"
    settings = Settings(
        tables_catalog_name="lake",
        tables_catalog_uri=f"sqlite:///{tmp_path}/catalog.db",
        tables_warehouse=bucket,
        tables_namespace="cloud_tests",
        azure_endpoint=url if cloud == "azure" else None,
        gcs_endpoint=url if cloud == "google" else None,
    )
    tables.catalog = await asyncio.to_thread(CatalogAddress.of(settings).open)
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", layout=["day"])
    for number in range(3):
        await world.write(key, number)
        assert (await tables.follow()).outcome is CommitOutcome.COMMITTED
    await tables.check()
    upkeep = TableUpkeep(tables.catalog, UpkeepTerms(files_min=2, snapshot_max_age_ms=1))
    report = await asyncio.to_thread(upkeep.keep, "orders", NOW_MS)
    assert report.rewritten[:2] == (3, 1)
    await tables.check()
    await asyncio.to_thread(tables.catalog.drop, "orders", purge=False)


def test_where_the_files_of_a_warehouse_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address on Azure is one that Spark and other engines know; the account key is no property that is shown."""
    monkeypatch.setenv("AZURE_STORAGE_KEY", "secret")
    settings = Settings(tables_catalog_name="lake", tables_warehouse="az://account1/lake/tables")
    assert CatalogAddress.of(settings).properties == {
        "warehouse": "abfss://lake@account1.dfs.core.windows.net/tables",
        "adls.account-name": "account1",
        "py-io-impl": FILE_IO,
    }
    private = Settings(
        tables_catalog_name="lake",
        tables_warehouse="abfss://lake@account1.dfs.core.usgovcloudapi.net/tables",
    )
    properties = dict(CatalogAddress.of(private).properties)
    assert properties["warehouse"] == private.tables_warehouse
    assert properties["adls.blob-storage-authority"] == ".blob.core.usgovcloudapi.net"
    location = f"{private.tables_warehouse}/a/b.parquet"
    assert AzureFileIO.parse_location(location, properties) == ("abfss", "lake", "lake/tables/a/b.parquet")
    with pytest.raises(ValueError, match="another account"):
        AzureFileIO.parse_location(location.replace("account1", "account2"), properties)
