"""What opens the records of a table: of its values, and of its keys if it has a row per key.

Place: made for each chunk by worker.py, and in tasks of Spark. Pure.
Invariant: driver, tasks and the local worker open by the same rules: the table's definition and its schema.
"""

from __future__ import annotations

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from headrace.config.table_configs import BINARY
from headrace.tables.keyed.opener import KeyedOpener
from headrace.tables.state import Definition
from headrace.tables.values.formats import ValueFormats
from headrace.tables.values.open import ValueOpener


def value_opener(definition: Definition, schema: Schema, formats: ValueFormats) -> ValueOpener | None:
    """Return what opens values; None for a table without a schema. OptionError, SchemaError if it cannot be used."""
    if definition.value_format == BINARY:
        return None
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return formats.opener(definition, columns)


def keyed_opener(definition: Definition, schema: Schema, formats: ValueFormats) -> KeyedOpener:
    """Return what opens records for a table with a row per key. Errors as value_opener."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return KeyedOpener.of(definition, columns, value_opener(definition, schema, formats))
