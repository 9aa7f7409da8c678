"""Values in Confluent's wire format: a zero byte, a schema's id in four bytes, the value; before a Protobuf message the
indexes that say which one of its file it is (protobuf.py).

Place: a format of open.py; asks a schema registry by confluent-kafka's client, with limited answers:
its time-out counts from byte to byte.
Invariant: an id is unknown only if the registry said so after the record was stored: what it did not know is asked
again for each chunk, several ids at once, and at most IDS_MAX of them. A registry that does not answer, or refuses, is
UnavailableError: nothing is appended until it answers. No answer makes a worker keep more than ANSWER_BYTES_MAX, or
wait longer than ANSWER_SECONDS_MAX.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from headrace.config.addresses import without_secrets
from headrace.scan.errors import OptionError
from headrace.storage.errors import UnavailableError
from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.values.avro import AvroSchema
from headrace.tables.values.columns import ValueShape
from headrace.tables.values.json_schema import JsonSchema
from headrace.tables.values.limits import REFERENCES_MAX, SCHEMA_BYTES_MAX
from headrace.tables.values.open import LaterError
from headrace.tables.values.protobuf import ProtobufSchema

Parsed = AvroSchema | JsonSchema | ProtobufSchema

_PREFIX = struct.Struct(">bI")
SERIALIZED = "serialized"
"""The format in which a registry gives the descriptor of a .proto file, instead of its text."""
TIMEOUT_SECONDS = 10
IDS_MAX = 256
"""Ids of one chunk that the registry is asked for."""
AT_ONCE = 8
PARTS_KEPT = 300_000
"""Parts of all parsed schemas that are kept, about a thousand bytes each."""
ANSWER_BYTES_MAX = 4 * SCHEMA_BYTES_MAX
"""A schema as JSON in JSON, where each quotation mark has a backslash."""
ANSWER_SECONDS_MAX = 20.0
_UNKNOWN = (40403, 40401, 40402)
"""Error codes of a registry, with status 404: it has no such schema, subject or version."""


class AnswerTooLargeError(Exception):
    """The registry answers with more bytes than a schema may have."""


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
        for each in (self._client, self._descriptors):
            _limit_answers(each)
        self._known: dict[int, Parsed | SchemaError] = {}
        self._parts = 0
        self._failed: dict[int, MisfitError | UnavailableError] = {}
        """What the registry did not know, or did not answer, when this chunk began."""
        self._asked_for: set[int] | None = None
        """The ids of this chunk; None: no chunk has begun."""

    def begin(self, values: Sequence[bytes | None] = ()) -> None:
        """Ask for the ids of these values that are not known, also again for what the registry did not know."""
        self._failed.clear()
        ids = dict.fromkeys(_PREFIX.unpack_from(value)[1] for value in values if value is not None and _has_id(value))
        wanted = [each for each in ids if each not in self._known][:IDS_MAX]
        self._asked_for = set(wanted)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="schema-registry") as threads:
            for schema_id, error in zip(wanted, threads.map(self._why_unknown, wanted), strict=True):
                if error is not None:
                    self._failed[schema_id] = error

    def open(self, value: bytes) -> tuple[ValueShape, Any]:
        """MisfitError for another format or an unknown id; SchemaError for a schema that no table can have. LaterError:
        the chunk has more new ids than the registry is asked for.
        """
        if not _has_id(value):
            raise MisfitError("not in the wire format of a schema registry: a zero byte and a schema's id")
        _, schema_id = _PREFIX.unpack_from(value)
        schema = self._schema(schema_id)
        if isinstance(schema, ProtobufSchema):
            return schema.open(value[_PREFIX.size :])
        return schema.shape, schema.read(value[_PREFIX.size :])

    def _schema(self, schema_id: int) -> Parsed:
        if (failed := self._failed.get(schema_id)) is not None:
            raise failed
        if (found := self._known.get(schema_id)) is None:
            if self._asked_for is not None and schema_id not in self._asked_for:
                raise LaterError
            try:
                found = self._parsed(f"schema {schema_id}", schema_id)
            except SchemaError as error:
                found = error
            except MisfitError as error:
                self._failed[schema_id] = error
                raise
            self._remember(schema_id, found)
        if isinstance(found, SchemaError):
            raise found
        return found

    def _remember(self, schema_id: int, found: Parsed | SchemaError) -> None:
        self._known[schema_id] = found
        self._parts += _parts_of(found)
        while self._parts > PARTS_KEPT and len(self._known) > 1:
            self._parts -= _parts_of(self._known.pop(next(iter(self._known))))

    def _why_unknown(self, schema_id: int) -> MisfitError | UnavailableError | None:
        """Let the client remember a schema; why it cannot. A schema that is too large says so when it is parsed."""
        try:
            self._asked(schema_id)
        except (MisfitError, UnavailableError) as error:
            return error
        except SchemaError:
            pass
        return None

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

    def _references(
        self, schema: Schema, fmt: str | None = None, found: dict[str, str] | None = None
    ) -> dict[str, str]:
        """The texts of the schemas that this one refers to, by name; each after those that it refers to itself.

        `found`: of those around it. A name is looked up once, however many schemas refer to it.
        """
        found = {} if found is None else found
        for each in schema.references or ():
            if each.name is None or each.subject is None or each.version is None:
                raise SchemaError(f"a reference without a name, a subject or a version: {each}")
            if each.name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise SchemaError(f"a schema that refers to more than {REFERENCES_MAX} others")
            found[each.name] = ""  # also for one that refers to itself
            version = self._version(each.subject, each.version, fmt)
            self._references(version, fmt, found)
            del found[each.name]  # now behind those that it refers to
            found[each.name] = version.schema_str or ""
        return found

    def _version(self, subject: str, version: int, fmt: str | None) -> Schema:
        try:
            client = self._client if fmt is None else self._descriptors
            return client.get_version(subject, version, deleted=True, fmt=fmt).schema
        except Exception as error:
            raise self._meant(error, f"subject {subject} version {version}") from None

    def _meant(self, error: Exception, what: str) -> MisfitError | SchemaError | UnavailableError:
        if isinstance(error, AnswerTooLargeError):
            return SchemaError(f"{what}: {error}")
        if isinstance(error, SchemaRegistryError) and error.http_status_code == 404 and error.error_code in _UNKNOWN:
            return MisfitError(f"the schema registry does not know {what}")
        told = f"{type(error).__name__}: {without_secrets(str(error), *self._urls)}"
        return UnavailableError(f"the schema registry does not answer for {what}: {told}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._descriptors.close()


def _has_id(value: bytes) -> bool:
    return len(value) >= _PREFIX.size and not value[0]


def _parts_of(found: Parsed | SchemaError) -> int:
    return 1 if isinstance(found, SchemaError) else found.parts


def _limit_answers(client: Any, monotonic: Callable[[], float] = time.monotonic) -> None:
    """Read the answers to this client (SchemaRegistryClient) within the limits. AnswerTooLargeError, TimeoutError."""

    def read(response: Any) -> None:
        ends, body = monotonic() + ANSWER_SECONDS_MAX, bytearray()
        for part in response.iter_bytes():
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise AnswerTooLargeError(f"the registry answers with more than {ANSWER_BYTES_MAX} bytes")
            if monotonic() > ends:
                raise TimeoutError(f"the registry's answer takes more than {ANSWER_SECONDS_MAX:.0f} s")
        response._content = bytes(body)

    client._rest_client.session.event_hooks["response"].append(read)
