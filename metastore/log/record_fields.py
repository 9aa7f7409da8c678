"""What the records of the metadata log are made of: the types of their fields, and the decorator of their classes.

Place: under kip631_records.py and own_records.py, which declare the records; records.py frames them.
Invariant: a record is a frozen dataclass; its annotations are its wire format, in the order of the fields.
Source: KIP-631, "Record Formats" (seed kip-631-quorum-controller).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar, dataclass_transform

from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.log.wire import Array, Bytes, Fixed, NotNull, String, Uuid

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
