"""A schema from a file: each value is one of it, without anything in front. An inferred format has none.

Place: a format of open.py; the table's properties have the file's text.
Invariant: as avro.py and json_schema.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.tables.values.avro import AvroSchema
from headrace.tables.values.columns import ValueShape
from headrace.tables.values.json_schema import JsonSchema


class GivenSchema:
    """Implements ValueFormat."""

    def __init__(self, schema: AvroSchema | JsonSchema) -> None:
        self._schema = schema

    @property
    def shape(self) -> ValueShape:
        return self._schema.shape

    def begin(self, values: Sequence[bytes | None] = ()) -> None:
        """Do nothing: the schema does not change."""

    def open(self, value: bytes) -> tuple[ValueShape, Any]:
        """MisfitError."""
        return self._schema.shape, self._schema.read(value)
