"""Values in Confluent's wire format: a zero byte, a schema's id in four bytes, the value; before a Protobuf message the
indexes that say which one of its file it is (protobuf.py).

Place: a format of open.py; asks a schema registry by confluent-kafka's client.
Invariant: an id is unknown only if the registry says so. A registry that does not answer, or refuses, is
UnavailableError: nothing is appended until it answers.
"""

from __future__ import annotations

import struct
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from headrace.config.shown import without_secrets
from headrace.scan.errors import MisfitError, OptionError, SchemaError
from headrace.scan.tables.values.avro import AvroSchema
from headrace.scan.tables.values.columns import ValueShape
from headrace.scan.tables.values.json_schema import JsonSchema
from headrace.scan.tables.values.protobuf import ProtobufSchema
from headrace.storage.errors import UnavailableError

Parsed = AvroSchema | JsonSchema | ProtobufSchema

_PREFIX = struct.Struct(">bI")
SERIALIZED = "serialized"
"""The format in which a registry gives the descriptor of a .proto file, instead of its text."""
TIMEOUT_SECONDS = 30
_UNKNOWN = (40403, 40401, 40402)
"""Error codes of a registry, with status 404: it has no such schema, subject or version."""


class RegistryFormat:
    """Implements ValueFormat. Keeps what it has parsed: a schema of an id never changes."""

    def __init__(self, url: str) -> None:
        """OptionError for an address that is none."""
        said = {"url": url, "timeout": TIMEOUT_SECONDS, "max.retries": 1}
        try:
            self._client = SchemaRegistryClient(said)
            self._descriptors = SchemaRegistryClient(said)  # its cache does not tell formats apart
        except (ValueError, TypeError) as error:
            raise OptionError(f"tables.schema.registry.url: {without_secrets(str(error), *url.split(','))}") from None
        self._urls = url.split(",")
        self._known: dict[int, Parsed | SchemaError] = {}
        self._unknown: dict[int, MisfitError] = {}

    def begin(self) -> None:
        """Ask again for what the registry did not know."""
        self._unknown.clear()

    def open(self, value: bytes) -> tuple[ValueShape, Any]:
        """MisfitError for another format or an unknown id; SchemaError for a schema that no table can have."""
        if len(value) < _PREFIX.size or value[0]:
            raise MisfitError("not in the wire format of a schema registry: a zero byte and a schema's id")
        _, schema_id = _PREFIX.unpack_from(value)
        schema = self._schema(schema_id)
        if isinstance(schema, ProtobufSchema):
            return schema.open(value[_PREFIX.size :])
        return schema.shape, schema.read(value[_PREFIX.size :])

    def _schema(self, schema_id: int) -> Parsed:
        if (unknown := self._unknown.get(schema_id)) is not None:
            raise unknown
        if (found := self._known.get(schema_id)) is None:
            try:
                found = self._parsed(f"schema {schema_id}", schema_id)
            except SchemaError as error:
                found = error
            except MisfitError as error:
                self._unknown[schema_id] = error
                raise
            self._known[schema_id] = found
        if isinstance(found, SchemaError):
            raise found
        return found

    def _asked(self, schema_id: int, fmt: str | None = None) -> Schema:
        try:
            client = self._client if fmt is None else self._descriptors
            return client.get_schema(schema_id, fmt=fmt)
        except Exception as error:
            raise self._meant(error, f"schema {schema_id}") from None

    def _parsed(self, name: str, schema_id: int) -> Parsed:
        schema = self._asked(schema_id)
        text = schema.schema_str or ""
        match schema.schema_type:
            case None | "AVRO":
                named: dict[str, Any] = {}
                for each in self._references(schema).values():
                    AvroSchema(name, each, named)
                return AvroSchema(name, text, named)
            case "JSON":
                return JsonSchema(name, text, self._references(schema))
            case "PROTOBUF":
                schema = self._asked(schema_id, SERIALIZED)
                return ProtobufSchema(name, schema.schema_str or "", self._references(schema, SERIALIZED))
        raise SchemaError(f"{name} is of type {schema.schema_type}: AVRO, JSON and PROTOBUF are read")

    def _references(self, schema: Schema, fmt: str | None = None) -> dict[str, str]:
        """The texts of the schemas that this one refers to, by name; each after those that it refers to itself."""
        found: dict[str, str] = {}
        for each in schema.references or ():
            if each.name is None or each.subject is None or each.version is None:
                raise SchemaError(f"a reference without a name, a subject or a version: {each}")
            try:
                client = self._client if fmt is None else self._descriptors
                version = client.get_version(each.subject, each.version, deleted=True, fmt=fmt).schema
            except Exception as error:
                raise self._meant(error, f"subject {each.subject} version {each.version}") from None
            found |= {name: text for name, text in self._references(version, fmt).items() if name not in found}
            found[each.name] = version.schema_str or ""
        return found

    def _meant(self, error: Exception, what: str) -> MisfitError | UnavailableError:
        if isinstance(error, SchemaRegistryError) and error.http_status_code == 404 and error.error_code in _UNKNOWN:
            return MisfitError(f"the schema registry does not know {what}")
        told = f"{type(error).__name__}: {without_secrets(str(error), *self._urls)}"
        return UnavailableError(f"the schema registry does not answer for {what}: {told}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._descriptors.close()
