"""Writes a table's data files, or reads their rows: here, or in tasks of Spark away from the committing process.

Place: between rows and the commits that add files (appending.py, upkeep/, keyed/). Blocks. Rows of one Iceberg
schema are turned into rows of another, as Arrow: columns are the same if they have the same field id.

    rows of a data file -> the columns of the table's newest schema      (read)
    rows of the table   -> the columns of a data file, with field ids    (write)

Invariant of projected rows: a value stays what it is, and null stays null: a null list, map or struct does not
become an empty one, at any depth and in any slice. pyiceberg's own projection (0.12) drops the nulls of lists and
maps of structs, when it writes and when it reads.

    metadata and storage of the table (of the look) -> rows -> Parquet files at its place -> their descriptions

Invariant: layout, names and metrics of the files are those that pyiceberg's own append would write, but for two
things. Nulls stay nulls. And the columns of the record (time, offset, partition, key) have bounds in the manifest
also where they are fields of the struct `kafka`, so a query by time opens only files that may have such rows. The
files belong to no snapshot until the commit; their names say for which table they are, so those of failed tasks are
found (upkeep/orphans.py).
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    _combine_positional_deletes,
    _determine_partitions,
    _get_column_projection_values,
    _get_file_format,
    _get_parquet_writer_kwargs,
    _read_all_delete_files,
    bin_pack_arrow_table,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    match_metrics_mode,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import FileScanTask, Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IcebergType, ListType, MapType, NestedField, StringType, StructType
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.properties import property_as_int

from headrace.tables.commit.committing import BuiltFiles, building
from headrace.tables.commit.file_names import name_files
from headrace.tables.errors import TableError
from headrace.tables.values.columns import KAFKA


def projected(
    batch: pa.RecordBatch, have: Schema, want: Schema, target: pa.Schema, constants: Mapping[int, Any] | None = None
) -> pa.RecordBatch:
    """Return the batch with the columns of `want`, which are `target` in Arrow. `have`: the schema of the batch,
    with columns in the same order. `constants`: by field id, the value of columns that the batch lacks. TableError if
    a required column is missing.
    """
    columns = _fields(batch.columns, have.fields, want.fields, list(target), len(batch), constants or {})
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _fields(
    values: list[pa.Array],
    have: tuple[NestedField, ...],
    want: tuple[NestedField, ...],
    target: list[pa.Field],
    rows: int,
    constants: Mapping[int, Any],
) -> list[pa.Array]:
    places = {field.field_id: at for at, field in enumerate(have)}
    found = []
    for field, into in zip(want, target, strict=True):
        at = places.get(field.field_id)
        if at is not None:
            found.append(_projected(values[at], have[at].field_type, field.field_type, into.type, constants))
        elif (constant := constants.get(field.field_id, field.initial_default)) is not None:
            found.append(pa.repeat(pa.scalar(constant, type=into.type), rows))
        elif field.required:
            raise TableError(f"a data file lacks the required column {field.name} ({field.field_id})")
        else:
            found.append(pa.nulls(rows, into.type))
    return found


def _projected(
    values: pa.Array, have: IcebergType, want: IcebergType, target: pa.DataType, constants: Mapping[int, Any]
) -> pa.Array:
    match want:
        case StructType():
            assert isinstance(have, StructType), "a struct does not become another type"
            children = [values.field(at) for at in range(values.type.num_fields)]
            fields = [target.field(at) for at in range(target.num_fields)]
            found = _fields(children, have.fields, want.fields, fields, len(values), constants)
            return pa.StructArray.from_arrays(found, fields=fields, mask=values.is_null())
        case ListType():
            assert isinstance(have, ListType), "a list does not become another type"
            start, end, offsets = _offsets(values)
            items = values.values.slice(start, end - start)
            made = _projected(items, have.element_type, want.element_type, target.value_type, constants)
            return pa.LargeListArray.from_arrays(offsets, made, type=target, mask=values.is_null())
        case MapType():
            assert isinstance(have, MapType), "a map does not become another type"
            start, end, offsets = _offsets(values)
            keys, items = (each.slice(start, end - start) for each in (values.keys, values.items))
            made_keys = _projected(keys, have.key_type, want.key_type, target.key_type, constants)
            made_items = _projected(items, have.value_type, want.value_type, target.item_type, constants)
            offsets = offsets.cast(pa.int32())
            return pa.MapArray.from_arrays(offsets, made_keys, made_items, type=target, mask=values.is_null())
    return values if values.type == target else values.cast(target)


def _offsets(values: pa.Array) -> tuple[int, int, pa.Array]:
    """Return where the elements of a list or map array begin and end, and its offsets from there on."""
    offsets = values.offsets.to_numpy().astype("int64")  # a copy: Arrow takes no nulls with offsets of a slice
    start, end = int(offsets[0]), int(offsets[-1])
    return start, end, pa.array(offsets - start)


BOUNDED = ("key", "timestamp", "partition", "offset")
"""The fields of `kafka` that have bounds."""


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
    with building(f"table at {metadata.location}"):
        return write_files(metadata, BuiltFiles(load_file_io(place.storage, metadata.location)), rows)


class _Part(NamedTuple):
    """The rows of one file."""

    name: str
    rows: list[pa.RecordBatch]
    place: PartitionKey | None


def write_files(metadata: TableMetadata, storage: FileIO, rows: pa.Table) -> list[DataFile]:
    """Write the rows, in the table's columns, as files of its newest schema and partitioning. Errors of pyarrow and of
    the storage; what was written then stays.
    """
    if not rows.num_rows:
        return []
    format_name = metadata.properties.get(TableProperties.WRITE_FILE_FORMAT, FileFormat.PARQUET.value)
    if FileFormat(format_name) is not FileFormat.PARQUET:
        raise TableError(f"only Parquet is written: {TableProperties.WRITE_FILE_FORMAT}={format_name}")
    parts = list(_parts(metadata, rows))
    write = _FileWriter.of(metadata, storage, rows.schema).write
    return list(ExecutorFactory.get_or_create().map(write, parts))


def _parts(metadata: TableMetadata, rows: pa.Table) -> Iterator[_Part]:
    """Divide the rows by partition, and by the size of files."""
    target = property_as_int(
        metadata.properties,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
    )
    assert target is not None, "it has a default"
    spec, commit, number = metadata.spec(), uuid.uuid4(), itertools.count()
    places: Iterable[tuple[PartitionKey | None, pa.Table]] = [(None, rows)]
    if not spec.is_unpartitioned():
        divided = _determine_partitions(spec, metadata.schema(), rows)
        places = ((each.partition_key, each.arrow_table_partition) for each in divided)
    for place, its in places:
        for batches in bin_pack_arrow_table(its, target):
            yield _Part(f"00000-{next(number)}-{commit}.parquet", batches, place)


class _FileWriter(NamedTuple):
    """Writes files of one table."""

    metadata: TableMetadata
    storage: FileIO
    have: Schema
    """The schema of the rows, which has the ids of the table's."""
    want: Schema
    target: pa.Schema
    metrics: dict[int, StatisticsCollector]

    @classmethod
    def of(cls, metadata: TableMetadata, storage: FileIO, rows: pa.Schema) -> _FileWriter:
        """`rows`: the schema of the rows in Arrow; its columns are found by their names."""
        schema = metadata.schema()
        have = pyarrow_to_schema(rows, name_mapping=schema.name_mapping, format_version=metadata.format_version)
        want = sanitize_column_names(schema)
        metrics = compute_statistics_plan(want, metadata.properties) | bounds_of(schema, metadata.properties)
        return cls(metadata, storage, have, want, schema_to_pyarrow(want, include_field_ids=True), metrics)

    def write(self, part: _Part) -> DataFile:
        """Write the part's rows as one Parquet file, and return its entry for a manifest."""
        properties = self.metadata.properties
        batches = [projected(each, self.have, self.want, self.target) for each in part.rows]
        places = load_location_provider(self.metadata.location, properties)
        path = places.new_data_location(part.name, part.place)
        output = self.storage.new_output(path)
        options = _get_parquet_writer_kwargs(properties)
        group_rows = property_as_int(
            properties, TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT
        )
        with (
            output.create(overwrite=True) as stream,
            pq.ParquetWriter(stream, self.target, store_decimal_as_integer=True, **options) as writer,
        ):
            writer.write_table(pa.Table.from_batches(batches, self.target), row_group_size=group_rows)
        found = data_file_statistics_from_parquet_metadata(
            writer.writer.metadata, self.metrics, parquet_path_to_id_mapping(self.want)
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record() if part.place is None else part.place.partition,
            file_size_in_bytes=len(output),
            sort_order_id=None,
            spec_id=self.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **found.to_serialized_dict(),
        )


def bounds_of(schema: Schema, properties: dict[str, str]) -> dict[int, StatisticsCollector]:
    """Return the metrics of the record's columns inside `kafka`, by field id: as those of a column at the top, also if
    the table's properties say which. pyiceberg gives nested columns no bounds.
    """
    kafka = next((field for field in schema.fields if field.name == KAFKA), None)
    if kafka is None or not isinstance(kafka.field_type, StructType):
        return {}
    found = {}
    default = properties.get(
        TableProperties.DEFAULT_WRITE_METRICS_MODE, TableProperties.DEFAULT_WRITE_METRICS_MODE_DEFAULT
    )
    for field in kafka.field_type.fields:
        if field.name in BOUNDED:
            name, kind = f"{KAFKA}.{field.name}", field.field_type
            said = properties.get(f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.{name}", default)
            mode = match_metrics_mode(said)
            if mode.type is MetricModeTypes.TRUNCATE and not isinstance(kind, (BinaryType, StringType)):
                mode = MetricsMode(MetricModeTypes.FULL)
            found[field.field_id] = StatisticsCollector(field.field_id, kind, mode, name)  # type: ignore[arg-type]
    return found


def with_bounds(metadata: TableMetadata, storage: FileIO, file: DataFile) -> DataFile:
    """Return the file with bounds of the record's columns: those of its manifest, or else of its Parquet footer. Files
    that were written before have none in the manifest; of other formats and without statistics none is known.
    """
    names = [f"{KAFKA}.{name}" for name in BOUNDED if KAFKA in metadata.schema().column_names]
    ids = {metadata.schema().find_field(name).field_id for name in names}
    if file.file_format is not FileFormat.PARQUET or ids & (file.lower_bounds or {}).keys() or not ids:
        return file
    with storage.new_input(file.file_path).open() as stream:
        footer = pq.read_metadata(stream)
    have = pyarrow_to_schema(footer.schema.to_arrow_schema(), metadata.name_mapping(), downcast_ns_timestamp_to_us=True)
    metrics = compute_statistics_plan(have, {}) | bounds_of(have, {})
    found = data_file_statistics_from_parquet_metadata(footer, metrics, parquet_path_to_id_mapping(have))
    return DataFile.from_args(
        content=file.content,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        file_size_in_bytes=file.file_size_in_bytes,
        spec_id=file.spec_id,
        **found.to_serialized_dict(),
    )


def read_files(metadata: TableMetadata, storage: FileIO, files: Iterable[DataFile]) -> pa.Table:
    """Return the rows of these files, in the columns of the table's newest schema. No delete file is applied."""
    return read_tasks(metadata, storage, [FileScanTask(each) for each in files], metadata.schema())


def read_tasks(metadata: TableMetadata, storage: FileIO, tasks: Sequence[FileScanTask], want: Schema) -> pa.Table:
    """Return the rows of these files that their position deletes leave, in the columns of `want`: the table's newest
    schema, or a part of it.
    """
    target = schema_to_pyarrow(want, include_field_ids=False)
    deletes = _read_all_delete_files(storage, tasks)

    def read(task: FileScanTask) -> list[pa.RecordBatch]:
        gone = deletes.get(task.file.file_path)
        return list(_batches(metadata, storage, task.file, gone, want, target))

    found = ExecutorFactory.get_or_create().map(read, tasks)
    return pa.Table.from_batches([batch for batches in found for batch in batches], target)


def _batches(
    metadata: TableMetadata,
    storage: FileIO,
    file: DataFile,
    deletes: list[pa.ChunkedArray] | None,
    want: Schema,
    target: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    with storage.new_input(file.file_path).open() as stream:
        fragment = _get_file_format(file.file_format).make_fragment(stream)
        physical = fragment.physical_schema
        have = pyarrow_to_schema(
            physical,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=True,
            format_version=metadata.format_version,
        )
        constants = _get_column_projection_values(
            file, want, metadata.schema(), metadata.specs().get(file.spec_id), have.field_ids
        )
        ids = {field.field_id for field in want.fields}
        part = Schema(*(field for field in have.fields if field.field_id in ids))
        scanner = ds.Scanner.from_fragment(fragment, schema=physical, columns=[field.name for field in part.fields])
        end = 0
        for batch in scanner.to_batches():
            start, end = end, end + batch.num_rows
            left = batch if deletes is None else batch.take(_combine_positional_deletes(deletes, start, end))
            if left.num_rows:
                yield projected(left, part, want, target, constants)
