"""Writes a table's data files away from the process that commits them: in tasks of Spark.

    metadata and storage of the table (of the look) -> rows -> Parquet files at its place -> their descriptions

Place: between a task's rows and appending.py, which adds the files to one commit. Blocks.
Invariant: the files are those that pyiceberg's own append would write: same layout, names and metrics. They belong to
no snapshot until the commit; their names say for which table they are, so those of failed tasks are found (orphans.py).
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from headrace.scan.tables.building import BuiltFiles, building
from headrace.scan.tables.file_names import name_files


class DataFilePlace(NamedTuple):
    """A table as of one look, for a task: its metadata in JSON, and the properties of its storage, with secrets."""

    metadata: str
    storage: dict[str, str]

    @classmethod
    def of(cls, table: Table) -> DataFilePlace:
        return cls(table.metadata.model_dump_json(), dict(table.io.properties))

    def open(self) -> TableMetadata:
        """The metadata. Files that are written with it have the names of file_names.py."""
        metadata = TableMetadataUtil.parse_raw(self.metadata)
        name_files(metadata.properties, metadata.table_uuid)
        return metadata


def write_data_files(place: DataFilePlace, metadata: TableMetadata, rows: pa.Table) -> list[DataFile]:
    """Write the rows. UnavailableError: the storage does not answer; BuildingError: they cannot be written."""
    if not rows.num_rows:
        return []
    with building(f"table at {metadata.location}"):
        storage = BuiltFiles(load_file_io(place.storage, metadata.location))
        return list(_dataframe_to_data_files(metadata, rows, storage))
