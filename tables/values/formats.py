"""The value formats that a table can have, by the name that its properties and the command have.

| name | values |
| --- | --- |
| binary | bytes: no schema |
| registry | Avro or JSON in Confluent's wire format, with a schema of a registry |
| json | JSON; the columns are what is there |
| avro, json-schema | values of one schema, which is in a file |

Place: the command checks what a user gives; the worker opens chunks by it.
Invariant: a worker that cannot open the format of a table appends nothing to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.config.table_configs import AVRO, JSON, JSON_SCHEMA, REGISTRY, VALUE_FORMATS
from headrace.scan.errors import OptionError
from headrace.tables.state import Definition
from headrace.tables.values.apart.process import ApartOpener, OpeningPool
from headrace.tables.values.avro import AvroSchema
from headrace.tables.values.columns import ValueShape
from headrace.tables.values.inferred import InferredJson
from headrace.tables.values.json_schema import JsonSchema
from headrace.tables.values.open import ChunkOpener, Tolerance, ValueFormat, ValueOpener

WITH_FILE = (AVRO, JSON_SCHEMA)


class GivenSchema:
    """A schema from a file: each value is one of it, without anything in front. Implements ValueFormat."""

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


class ValueFormats:
    """The formats that a process has open. `registry_url` empty: no registry. `pool`: its processes open the values;
    None: this one does.
    """

    def __init__(self, registry_url: str = "", pool: OpeningPool | None = None) -> None:
        self.registry_url, self.pool = registry_url, pool
        self._registry: ValueFormat | None = None
        self._given: dict[tuple[str, str], ValueFormat] = {}

    def opener(self, definition: Definition, schema: pa.Schema) -> ValueOpener:
        """Return what opens values of a table. Errors as `of`."""
        if self.pool is None:
            return ChunkOpener(self.of(definition), schema, Tolerance(definition.tolerance))
        self.require_registry(definition.value_format)
        return ApartOpener(self.pool, self.registry_url, definition, schema)

    def of(self, definition: Definition) -> ValueFormat:
        """The format of a table. OptionError if it is not known here, or no registry is set; SchemaError."""
        return self.opened(definition.value_format, definition.value_schema)

    def opened(self, name: str, schema: str) -> ValueFormat:
        """The same by its name, and the text of a schema that was given."""
        if name == REGISTRY:
            return self._of_registry()
        if (found := self._given.get((name, schema))) is None:
            found = self._given[name, schema] = _opened(name, schema)
        return found

    def require_registry(self, name: str) -> None:
        """OptionError if the format needs a registry, and none is set."""
        if name == REGISTRY and not self.registry_url:
            raise OptionError("tables.schema.registry.url is not set: the values are in the format of a registry")

    def _of_registry(self) -> ValueFormat:
        self.require_registry(REGISTRY)
        if self._registry is None:
            from headrace.tables.values.registry import RegistryFormat  # here: its client takes a while to import

            self._registry = RegistryFormat(self.registry_url)
        return self._registry

    def close(self) -> None:
        """End the processes."""
        if self.pool is not None:
            self.pool.close()


def _opened(name: str, schema: str) -> ValueFormat:
    if name == JSON:
        return InferredJson()
    if name == AVRO:
        return GivenSchema(AvroSchema("the table's schema", schema))
    if name == JSON_SCHEMA:
        return GivenSchema(JsonSchema("the table's schema", schema))
    raise OptionError(f"unknown value format: {name}: there are {', '.join(VALUE_FORMATS)}")


def require_format(definition: Definition, *, has_file: bool) -> pa.StructType | None:
    """Return the columns of a schema that is in a file. OptionError for a format that does not exist, lacks its file or
    has one too many, or for a tolerance that does not exist; SchemaError for a file that is no schema.
    """
    name = definition.value_format
    if name not in VALUE_FORMATS:
        raise OptionError(f"unknown value format: {name}: there are {', '.join(VALUE_FORMATS)}")
    if has_file != (name in WITH_FILE):
        raise OptionError(f"a schema file {'is needed for' if name in WITH_FILE else 'does not fit'} {name}")
    if definition.tolerance not in {each.value for each in Tolerance}:
        raise OptionError(f"unknown tolerance: {definition.tolerance}: there are none, invalid_data, all")
    found = _opened(name, definition.value_schema) if has_file else None
    return found.shape.columns if isinstance(found, GivenSchema) else None
