"""Limits of what clients' schemas and values may ask for. They are judged before the work is done, or while it is done.

    schema   bytes of its text, depth, parts after its references are expanded
    value    bytes, names, depth, steps of a validator

Place: under the formats (avro.py, json_schema.py, protobuf.py, inferred.py). What no limit here foresees is ended by
the process that opens values (apart/). Pure.
Invariant: what exceeds a limit is a SchemaError or a MisfitError with the limit in its text, and costs time and memory
in proportion to the limit, not to what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.tables.errors import MisfitError, SchemaError

VALUE_BYTES_MAX = 16 * 1024 * 1024
"""A larger value is not opened: as Python's objects it takes up to some thirty times as much memory."""
SCHEMA_BYTES_MAX = 1024 * 1024
SCHEMA_DEPTH_MAX = 64
"""Parts inside each other, after references are expanded."""
TEXT_DEPTH_MAX = 256
"""Objects and lists inside each other in a schema's text: the libraries that parse it are recursive."""
PARTS_MAX = 10_000
"""Parts of a schema after references are expanded, or of what a JSON value looks like. A table has 1,000 columns."""
NAME_BYTES_MAX = 255
"""Bytes of a column's name: each is in every version of a table's metadata."""
FIXED_BYTES_MAX = 1024 * 1024
DIGITS_MAX = 38
"""The most digits of Iceberg's decimals."""
REFERENCES_MAX = 100
"""Schemas to which one refers, also indirectly."""


class PartCount:
    """Counts the parts of a schema while its references are expanded: a few of them can double it thirty times."""

    def __init__(self) -> None:
        self.parts = self._depth = 0

    @contextmanager
    def part(self) -> Iterator[None]:
        """Enter one part. SchemaError if there are too many, or it is too deep."""
        self.parts += 1
        self._depth += 1
        try:
            if self.parts > PARTS_MAX:
                raise SchemaError(f"the schema has more than {PARTS_MAX} parts, with its references expanded")
            if self._depth > SCHEMA_DEPTH_MAX:
                raise SchemaError(f"the schema is nested deeper than {SCHEMA_DEPTH_MAX}")
            yield
        finally:
            self._depth -= 1


def require_small(text: str) -> None:
    """SchemaError for the text of a schema that is too long."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise SchemaError(f"the schema has more than {SCHEMA_BYTES_MAX} bytes")


def parsed_schema(text: str) -> Any:
    """Return a schema's text as JSON. SchemaError if it is too long or too deep; ValueError if it is no JSON."""
    require_small(text)
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise SchemaError(f"the schema's text is nested deeper than {TEXT_DEPTH_MAX}") from error
    level, depth = [found], 0
    while level:
        if (depth := depth + 1) > TEXT_DEPTH_MAX:
            raise SchemaError(f"the schema's text is nested deeper than {TEXT_DEPTH_MAX}")
        level = [inner for each in level if isinstance(each, dict | list) for inner in _inside(each)]
    return found


def _inside(part: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(part.values() if isinstance(part, dict) else part)


def require_openable(value: bytes) -> None:
    """MisfitError for a value that is too large."""
    if len(value) > VALUE_BYTES_MAX:
        raise MisfitError(f"the value has {len(value)} bytes: at most {VALUE_BYTES_MAX} are opened")


def require_short(name: str) -> None:
    """SchemaError for a field's name that is too long for a column."""
    if len(name) > NAME_BYTES_MAX or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise SchemaError(f"a field's name has more than {NAME_BYTES_MAX} bytes: {name[:40]}…")


def require_decimal(precision: int, scale: int) -> None:
    """SchemaError for a decimal that Iceberg does not have."""
    if not 0 < precision <= DIGITS_MAX:
        raise SchemaError(f"decimal of {precision} digits: Iceberg has 1 to {DIGITS_MAX}")
    if not 0 <= scale <= precision:
        raise SchemaError(f"decimal of {precision} digits with {scale} of them after the point")
