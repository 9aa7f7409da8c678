"""Limits how many files one commit writes: a table that is partitioned by a column has a file for each of its values.

    opened rows -> the place of each row in the table's partitioning -> the rows that fit into FILES_MAX files, and a
    cut where the others begin

Place: between opened records and the append (worker.py); tasks of Spark ask whether the driver has to cut. Pure.
Invariant: rows of a partition of the topic are cut off from some offset on, so what is appended is in offset order, and
the next commit begins at the cut. A cut leaves at least one row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import _get_field_from_arrow_table
from pyiceberg.table.metadata import TableMetadata

from headrace.tables.values.columns import KAFKA
from headrace.tables.values.open import Cut

FILES_MAX = 1_000
"""Files of one commit. Each costs a request, and a pass over the chunk's rows."""


def cuts_for(metadata: TableMetadata, rows: pa.Table) -> dict[int, Cut]:
    """Return by partition of the topic where the commit ends, because it would have more than FILES_MAX files."""
    if len(rows) <= FILES_MAX:
        return {}
    places = _places(metadata, rows)
    firsts = np.sort(np.unique(places, return_index=True)[1])
    if len(firsts) <= FILES_MAX:
        return {}
    log = _log(rows)
    partitions, offsets = (log.column(name).to_numpy()[firsts[FILES_MAX] :] for name in ("partition", "offset"))
    return {int(each): Cut(int(offsets[partitions == each].min())) for each in np.unique(partitions)}


def without(rows: pa.Table, cuts: dict[int, Cut]) -> pa.Table:
    """Return the rows before these cuts."""
    log = _log(rows)
    partitions, offsets = (log.column(name).to_numpy() for name in ("partition", "offset"))
    stays = np.ones(len(rows), bool)
    for partition, cut in cuts.items():
        stays &= (partitions != partition) | (offsets < cut.offset)
    return rows.filter(pa.array(stays))


def _places(metadata: TableMetadata, rows: pa.Table) -> NDArray[np.int64]:
    """Return a number for each row: rows with the same values of all partition fields, which are written to one file,
    have the same number.
    """
    schema, places = metadata.schema(), np.zeros(len(rows), np.int64)
    for field in metadata.spec().fields:
        name = schema.find_column_name(field.source_id)
        assert name is not None, "a partition field has its column"
        transform = field.transform.pyarrow_transform(schema.find_field(field.source_id).field_type)
        values = transform(_get_field_from_arrow_table(rows, name))
        chunk = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        codes = pc.fill_null(chunk.dictionary_encode().indices, -1).to_numpy().astype(np.int64)
        # One number per pair of place so far and value (-1 is null), made small again: it cannot overflow.
        pairs = places * (int(codes.max(initial=0)) + 2) + codes + 1
        _, places = np.unique(pairs, return_inverse=True)
    return places


def _log(rows: pa.Table) -> pa.Table:
    if KAFKA not in rows.column_names:
        return rows
    return pa.table({name: pc.struct_field(rows.column(KAFKA), name) for name in ("partition", "offset")})
