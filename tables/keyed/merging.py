"""Decides which record of each key is its row, and which rows of a file that replaces. Pure, on Arrow.

    changes       a row per record: its key, its place in the log, whether it deletes, and the columns of the table
    last_changes  one of them per key
    replaced      the rows of a data file that have a later record of their key

Place: between opened records (opener.py) and the data files of a group of keys (files.py).
Invariant: within a partition of the topic the higher offset wins, in any order of arrival and for any repetition.
Changes of a commit that begin before the table's offsets, or come again, give the same rows, if they reach the end of
what the table has. Of records of one key in several partitions, which only changes of the partition count and unusual
producers make, the one with the later timestamp wins, then the one of the higher partition; what the table had before
loses. key_order.py sees that a key which moved with a change of the count has its records in order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

KEY, PARTITION, OFFSET, TIMESTAMP, DELETES = "#key", "#partition", "#offset", "#timestamp", "#deletes"
"""Columns of a change next to those of the table, which have no such characters."""
PLACE = pa.schema(
    [(KEY, pa.large_binary()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, pa.int64()),
     (DELETES, pa.bool_())]
)  # fmt: skip
_NUMBER = "#number"


def changes_of(place: pa.Table, rows: pa.Table) -> pa.Table:
    """Changes with these places (PLACE) and rows, in the same order."""
    columns = [*(place.column(name) for name in PLACE.names), *rows.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*PLACE, *rows.schema]))


def rows_in(changes: pa.Table) -> pa.Table:
    """The rows of changes, as the table has them."""
    return changes.select(changes.column_names[len(PLACE) :])


def last_changes(changes: pa.Table) -> pa.Table:
    """The change of each key that is left."""
    place = changes.select([KEY, PARTITION, OFFSET, TIMESTAMP])
    place = place.append_column(_NUMBER, pa.array(np.arange(len(changes))))
    place = _last_of_each(place.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")]), [KEY, PARTITION])
    place = _last_of_each(place.sort_by([(TIMESTAMP, "ascending"), (PARTITION, "ascending")]), [KEY])
    return changes.take(place.column(_NUMBER))


def _last_of_each(ordered: pa.Table, keys: list[str]) -> pa.Table:
    at = "#at"
    numbered = ordered.select(keys).append_column(at, pa.array(np.arange(len(ordered))))
    found = numbered.group_by(keys, use_threads=False).aggregate([(at, "max")]).column(f"{at}_max")
    return ordered.take(found.combine_chunks().sort())


def replaced(keys: pa.ChunkedArray, last: pa.Table) -> NDArray[np.bool_]:
    """Return which rows of a data file go, by their joined keys (keys.py)."""
    goes: NDArray[np.bool_] = pc.is_in(keys, value_set=last.column(KEY).combine_chunks()).to_numpy()
    return goes
