"""What `headrace tables` does to a table that is stopped, paused, or of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.config.settings import Settings
from headrace.scan.cluster import ScannedCluster
from headrace.scan.errors import OptionError
from headrace.storage.errors import AlreadyExistsError, NotFoundError, UnavailableError
from headrace.tables.catalog import CatalogAddress
from headrace.tables.creating import Values
from headrace.tables.listing import TableAddress, duckdb_lines, pyiceberg_lines, shown, spark_lines
from headrace.tables.open_tables import OpenTables
from headrace.tables.state import definition_of
from headrace.tables.worker import KEPT_BY_SPARK
from tests.spark.world import ScanWorld
from tests.tables.world import NAMESPACE, Tables

SECRET = {"uri": "postgresql+psycopg://lake:hidden@db/catalog", "token": "hidden"}


@pytest.fixture
def command(world: ScanWorld, tables: Tables) -> OpenTables:
    cluster = ScannedCluster(world.postgres, world.store, world.clock, world.rng)
    return OpenTables(cluster, tables.catalog, CatalogAddress("test", NAMESPACE, {"uri": "sqlite:///x"}))


async def test_a_table_that_was_rolled_back_is_resumed_as_the_user_says(
    world: ScanWorld, tables: Tables, command: OpenTables
) -> None:
    (key,) = await world.topic("orders", 1)
    await command.create("orders", "orders", "earliest", (), {})
    for number in range(2):
        await world.write(key, number)
        await tables.follow()
    with pytest.raises(OptionError, match="is not stopped"):
        await command.resume("orders", "rows")
    tables.load().manage_snapshots().rollback_to_snapshot(tables.load().history()[1].snapshot_id).commit()
    (row,) = await command.rows()
    assert (row["condition"], row["lag"]) == ("stopped", None)
    with pytest.raises(OptionError, match="Say --at"):
        await command.resume("orders", None)
    with pytest.raises(OptionError, match="where to continue"):
        await command.resume("orders", "log")
    await command.resume("orders", "rows")
    await tables.follow()
    await tables.check()
    described = await replace(command, address=CatalogAddress("test", NAMESPACE, SECRET)).describe("orders")
    assert "hidden" not in str(described)
    assert (described["condition"], described["records"], described["lag"]) == ("following", 6, 0)


async def test_others_tables_are_not_listed_and_bad_input_is_named(
    world: ScanWorld, tables: Tables, command: OpenTables
) -> None:
    await world.topic("orders", 1)
    assert await command.rows() == []
    await command.create(
        "orders", "orders", "latest", ["day", "partition"], {"write.parquet.compression-codec": "gzip"}
    )
    tables.catalog.catalog.create_table(f"{NAMESPACE}.foreign", tables.load().schema())
    assert [row["table"] for row in await command.rows()] == ["orders"]
    with pytest.raises(NotFoundError):
        await command.create("other", "nothing", "earliest", (), {})
    with pytest.raises(OptionError, match="a table begins at"):
        await command.create("other", "orders", "yesterday", (), {})
    with pytest.raises(NotFoundError):
        await command.describe("other")
    with pytest.raises(OptionError, match="x_Dead_Letters: names with _dead_letters at the end"):
        await command.create("x_Dead_Letters", "orders", "latest", (), {})
    tables.catalog.catalog.create_table(f"{NAMESPACE}.x_dead_letters", tables.load().schema())
    with pytest.raises(AlreadyExistsError, match="is taken: x_dead_letters"):
        await command.create("x", "orders", "latest", (), {}, Values("json"))
    assert "x" not in tables.catalog.names()
    with pytest.raises(OptionError, match="every record fits"):
        await command.resume("orders", None, "all")
    with pytest.raises(OptionError, match="names the Iceberg catalog"):
        CatalogAddress.of(Settings())
    with pytest.raises(OptionError, match="unknown catalog"):
        CatalogAddress.of(Settings(tables_catalog_name="nowhere")).open()
    with pytest.raises((OptionError, UnavailableError)):
        CatalogAddress.of(Settings(tables_catalog_name="x", tables_catalog_uri="nonsense://here")).open()
    away = Settings(tables_catalog_name="x", tables_catalog_uri="http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="does not answer"):
        CatalogAddress.of(away).open().names()


async def test_a_table_with_a_row_per_key_is_created_shown_and_never_appended_to(
    world: ScanWorld, tables: Tables, command: OpenTables
) -> None:
    (key,) = await world.topic("orders", 1)
    with pytest.raises(OptionError, match=r"cleanup\.policy=delete: a table with table.mode=upsert needs"):
        await command.create("orders", "orders", "earliest", (), {}, Values(is_keyed=True))
    await command.create("orders", "orders", "earliest", (), {}, Values(is_keyed=True, key_columns=("key",)))
    await world.write(key, 1)
    assert (await tables.follow()).reason == KEPT_BY_SPARK
    described = await command.describe("orders")
    assert (described["mode"], described["key_columns"]) == ("upsert", ["key"])
    assert (described["records"], described["lag"], described["reason"]) == (0, 3, KEPT_BY_SPARK)
    assert described["end"] == {
        "snapshot_id": described["snapshot"], "starting_offsets": '{"orders":{"0":0}}'
    }  # fmt: skip
    properties = tables.load().properties
    assert "headrace.topic" not in properties, "a version that only appends takes it for a table of others"
    assert definition_of({name: value for name, value in properties.items() if "keyed" not in name}) is None
    await world.delete_records(key, 2)
    await command.resume("orders", None, "none")
    assert (await command.describe("orders"))["errors_tolerance"] == "none"


def test_no_secret_is_shown() -> None:
    properties = {
        "uri": "postgresql+psycopg://lake:hidden@db/catalog", "token": "hidden", "s3.secret-access-key": "hidden",
        "warehouse": "s3://lake/warehouse",
    }  # fmt: skip
    assert shown(properties) == {"warehouse": "s3://lake/warehouse"}
    address = TableAddress("lake", shown(properties), "headrace.orders", "s3://lake/metadata.json")
    assert "jdbc" in spark_lines(address)
    assert "hidden" not in pyiceberg_lines(address) + duckdb_lines(address) + spark_lines(address)
    rest = spark_lines(address._replace(properties={"uri": "http://rest:8181"}))
    assert "spark.sql.catalog.lake.type=rest" in rest
