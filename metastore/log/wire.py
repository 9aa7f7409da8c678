"""Encodes and decodes annotated dataclasses in Kafka's flexible encoding.

Place: under the records of the metadata log (kip631_records.py, own_records.py), which are declared with the field
types here; records.py frames them.
Invariant: a field's annotation is its whole wire description; decoding what was encoded gives an equal value. Tagged
fields that equal their default are left out; tags that this version does not know are skipped, so a newer writer may
add them. Fields are in the order of the dataclass.
Source: KIP-482 (compact strings and arrays, tagged fields), Kafka protocol guide (primitive types).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Annotated, Any, Protocol, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from headrace.metastore.api.cluster import MetadataRecord
from headrace.storage.errors import CorruptError


class Reader:
    """A position in bytes; CorruptError when they end too early."""

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        start, self.position = self.position, self.position + size
        if self.position > self.end:
            raise CorruptError(f"metadata record ends early: wanted={size} left={self.end - start}")
        return self.data[start : self.position]

    def uvarint(self) -> int:
        """An unsigned varint of at most 5 bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptError("metadata record has a varint of more than 5 bytes")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class FieldCodec(Protocol):
    """How one type of value is written and read."""

    def write(self, out: bytearray, value: Any) -> None:
        """Append the value."""

    def read(self, reader: Reader) -> Any:
        """The next value."""


class Fixed:
    """A number of fixed size, by its struct format; struct.error when it does not fit."""

    def __init__(self, form: str) -> None:
        self._struct = struct.Struct(">" + form)

    def write(self, out: bytearray, value: Any) -> None:
        out += self._struct.pack(value)

    def read(self, reader: Reader) -> Any:
        return self._struct.unpack(reader.take(self._struct.size))[0]


class Uuid:
    """16 bytes."""

    def write(self, out: bytearray, value: uuid.UUID) -> None:
        out += value.bytes

    def read(self, reader: Reader) -> uuid.UUID:
        return uuid.UUID(bytes=reader.take(16))


class Bytes:
    """Compact bytes: length + 1 as varint; None, where allowed, is 0."""

    def write(self, out: bytearray, value: bytes | None) -> None:
        write_uvarint(out, 0 if value is None else len(value) + 1)
        out += value or b""

    def read(self, reader: Reader) -> bytes | None:
        size = reader.uvarint()
        return None if size == 0 else reader.take(size - 1)


class String(Bytes):
    """Compact string in UTF-8."""

    def write(self, out: bytearray, value: str | None) -> None:  # type: ignore[override]
        super().write(out, None if value is None else value.encode())

    def read(self, reader: Reader) -> str | None:  # type: ignore[override]
        data = super().read(reader)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise CorruptError("metadata record has a string that is not UTF-8") from error


class NotNull:
    """Refuses the null that the inner codec would allow."""

    def __init__(self, inner: FieldCodec) -> None:
        self.write = inner.write
        self._read = inner.read

    def read(self, reader: Reader) -> Any:
        value = self._read(reader)
        if value is None:
            raise CorruptError("metadata record has a null where none may be")
        return value


class Array:
    """Compact array, read as a tuple; None, where allowed, is length 0."""

    def __init__(self, item: FieldCodec) -> None:
        self._item = item

    def write(self, out: bytearray, value: Sequence[Any] | None) -> None:
        write_uvarint(out, 0 if value is None else len(value) + 1)
        for item in value or ():
            self._item.write(out, item)

    def read(self, reader: Reader) -> tuple[Any, ...] | None:
        size = reader.uvarint()
        return None if size == 0 else tuple(self._item.read(reader) for _ in range(size - 1))


class Tag:
    """Marks a field as tagged; `Tag(3)` in its annotation, after the codec."""

    def __init__(self, number: int) -> None:
        self.number = number


class Structure:
    """A dataclass: its plain fields in order, then its tagged fields by rising tag."""

    def __init__(self, cls: type) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self._cls = cls
        self._plain: list[tuple[str, FieldCodec]] = []
        self._tagged: dict[int, tuple[Field[Any], FieldCodec]] = {}
        for field in fields(cls):
            codec, tag = _wire_description(hints[field.name])
            if tag is None:
                self._plain.append((field.name, codec))
            else:
                assert field.default is not MISSING, f"a tagged field needs a default: {cls.__name__}.{field.name}"
                self._tagged[tag] = (field, codec)

    def write(self, out: bytearray, value: Any) -> None:
        for name, codec in self._plain:
            codec.write(out, getattr(value, name))
        write_tagged(
            out,
            {
                tag: (codec, getattr(value, field.name))
                for tag, (field, codec) in self._tagged.items()
                if getattr(value, field.name) != field.default
            },
        )

    def read(self, reader: Reader) -> Any:
        values = {name: codec.read(reader) for name, codec in self._plain}
        for tag, body in tagged_fields(reader):
            if tag in self._tagged:
                field, codec = self._tagged[tag]
                values[field.name] = read_tagged(tag, codec, body)
        return self._cls(**values)


def write_tagged(out: bytearray, present: Mapping[int, tuple[FieldCodec, Any]]) -> None:
    """The tagged fields of a structure, by rising tag."""
    write_uvarint(out, len(present))
    for tag in sorted(present):
        codec, value = present[tag]
        body = bytearray()
        codec.write(body, value)
        write_uvarint(out, tag)
        write_uvarint(out, len(body))
        out += body


def tagged_fields(reader: Reader) -> Iterator[tuple[int, Reader]]:
    """(tag, its bytes) of each tagged field of a structure; a caller skips a field by not reading its bytes."""
    for _ in range(reader.uvarint()):
        tag, size = reader.uvarint(), reader.uvarint()
        start = reader.position
        yield tag, Reader(reader.data, start, start + len(reader.take(size)))


def read_tagged(tag: int, codec: FieldCodec, body: Reader) -> Any:
    """The value of a tagged field; CorruptError unless it takes up all of the field's bytes."""
    start = body.position
    value = codec.read(body)
    if body.position != body.end:
        raise CorruptError(f"metadata record has a tagged field of the wrong size: tag={tag} size={body.end - start}")
    return value


def _wire_description(hint: Any) -> tuple[FieldCodec, int | None]:
    assert get_origin(hint) is Annotated
    _, codec, *rest = get_args(hint)
    return codec, rest[0].number if rest else None


OWN_TAGS = 10_000
"""Tagged fields of ours start here, in records of KIP-631."""

Int8 = Annotated[int, Fixed("b")]
Int16 = Annotated[int, Fixed("h")]
UInt16 = Annotated[int, Fixed("H")]
Int32 = Annotated[int, Fixed("i")]
Int64 = Annotated[int, Fixed("q")]
Float64 = Annotated[float, Fixed("d")]
Bool = Annotated[bool, Fixed("?")]
Id = Annotated[uuid.UUID, Uuid()]
Text = Annotated[str, NotNull(String())]
NullableText = Annotated[str | None, String()]
Blob = Annotated[bytes, NotNull(Bytes())]
Int32s = Annotated[tuple[int, ...], NotNull(Array(Fixed("i")))]
Texts = Annotated[tuple[str, ...], NotNull(Array(NotNull(String())))]


_Record = TypeVar("_Record", bound=MetadataRecord)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(number: int) -> Callable[[type[_Record]], type[_Record]]:
    """A frozen dataclass with its record type."""

    def declare(plain: type[_Record]) -> type[_Record]:
        cls = dataclass(frozen=True, slots=True, kw_only=True)(plain)
        cls.record_type = number
        return cls

    return declare
