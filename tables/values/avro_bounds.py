"""Bounds of an Avro value, before fastavro reads it: items that take no byte, and types inside themselves.

    schema -> can a value ask for more than its bytes allow?   no, mostly: then nothing is done
    value  -> its bytes are followed: items are counted, depth is limited

Place: in front of fastavro in avro.py. Of an array of null, 7 bytes can claim 10^10 items; a record inside itself takes
a byte per level, and fastavro is recursive without a limit. Pure.
Invariant: a value that passes has at most ITEMS_MAX items without a byte, and at most DEPTH_MAX parts inside each
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ITEMS_MAX = 10_000
"""Items that take no byte, in one value."""
DEPTH_MAX = 200
"""Parts inside each other in one value: unions, records, arrays and maps count."""
_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class BoundedReads:
    """Follows values of one schema."""

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._schema, self._named = schema, named
        self._free = 0

    @classmethod
    def of(cls, schema: Any, named: Mapping[str, Any]) -> BoundedReads | None:
        """Make one; None if the bytes of a value limit what it can ask for."""
        found = _Judged(named)
        found.judge(schema, ())
        return cls(schema, named) if found.is_unbounded else None

    def require(self, data: bytes) -> None:
        """ValueError for a value that asks for too much, or ends early."""
        self._free = 0
        try:
            self._follow(self._schema, data, 0, 0)
        except IndexError as error:
            raise ValueError("the value ends early") from error

    def _follow(self, schema: Any, data: bytes, at: int, depth: int) -> int:
        """Return the position behind one value."""
        while isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, list):
            index, at = _varint(data, at)
            if not 0 <= index < len(schema):
                raise ValueError(f"a union has no branch {index}")
            return self._follow(schema[index], data, at, _deeper(depth))
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "null" | "boolean" | "float" | "double":
                return at + _FIXED_BYTES[kind]
            case "int" | "long" | "enum":
                return _varint(data, at)[1]
            case "bytes" | "string":
                size, at = _varint(data, at)
                return _behind(data, at, size)
            case "fixed":
                return _behind(data, at, schema["size"])
            case "record" | "error":
                for field in schema["fields"]:
                    at = self._follow(field["type"], data, at, _deeper(depth))
                return at
            case "array" | "map":
                return self._items(schema, data, at, _deeper(depth))
        return self._follow(kind, data, at, depth)

    def _items(self, schema: Any, data: bytes, at: int, depth: int) -> int:
        item = schema["items"] if schema["type"] == "array" else schema["values"]
        while True:
            count, at = _varint(data, at)
            if count < 0:
                count, (_, at) = -count, _varint(data, at)
            if not count:
                return at
            for _ in range(count):
                before = at
                if schema["type"] == "map":
                    size, at = _varint(data, at)
                    at = _behind(data, at, size)
                at = self._follow(item, data, at, depth)
                if at > len(data):
                    raise ValueError("the value ends early")
                if at == before:
                    self._free += 1
                    if self._free > ITEMS_MAX:
                        raise ValueError(f"more than {ITEMS_MAX} items take no byte")


class _Judged:
    """Looks whether a schema has items that may take no byte, or a type inside itself."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._least: dict[str, int] = {}
        self.is_unbounded = False

    def judge(self, schema: Any, inside: tuple[str, ...]) -> int:
        """Set `is_unbounded` if the schema gives a reason. Return 0 if a value may take no byte, else 1.

        `inside`: the names of the records around this schema. A record that is among them contains itself.
        """
        if isinstance(schema, list):  # a union: its value begins with the number of a branch
            for branch in schema:
                self.judge(branch, inside)
            return 1
        if isinstance(schema, str):
            if schema in self._named:
                return self._named_type(schema, inside)
            return 0 if schema == "null" else 1
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._named_type(schema["name"], inside)
        if kind == "array":
            if self.judge(schema["items"], inside) == 0:
                self.is_unbounded = True  # the bytes of the count allow any count
            return 1
        if kind == "map":
            self.judge(schema["values"], inside)  # an item has a key, so it takes a byte
            return 1
        if kind == "fixed":
            return min(int(schema["size"]), 1)
        if kind == "enum":
            return 1
        return self.judge(kind, inside)  # another spelling of a type: {"type": "int"}, {"type": [...]}

    def _named_type(self, name: str, inside: tuple[str, ...]) -> int:
        schema = self._named[name]
        if isinstance(schema, str) or schema["type"] not in ("record", "error"):
            return self.judge(schema, inside)
        if name in inside:
            self.is_unbounded = True
            return 0
        if name not in self._least:
            fields = [self.judge(field["type"], (*inside, name)) for field in schema["fields"]]
            self._least[name] = max(fields, default=0)
        return self._least[name]


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    return depth + 1


def _behind(data: bytes, at: int, size: int) -> int:
    if not 0 <= size <= len(data) - at:
        raise ValueError("the value ends early")
    return at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 70:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("a number does not end")
