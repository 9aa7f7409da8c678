"""How rows become the answer of an operation, by the type of that answer.

Place: below pass_through.py, which asks once for each operation, when the class of its noun is made.
Invariant: pure. The answer is made of the only row, or it is a collection of what is made of each row: a scalar, an
enum, or a tuple of the columns, in which enums are such. A type that needs more, as packed extents do, is an
InvalidError.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import starmap
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from headrace.metastore.postgres.signature import Signature
from headrace.storage.errors import InvalidError

Row = tuple[Any, ...]
Make = Callable[..., Any]

_COLLECTIONS: Mapping[Any, Make] = {list: list, Sequence: list, set: set, tuple: tuple}
_SCALARS = (bool, int, float, str)
_AS_THEY_ARE = (uuid.UUID, bytes)
_ANY_WIDTH = range(1_000)


def answer_of(hint: Any, signature: Signature | None) -> Callable[[list[Row]], Any]:
    """Return what makes an answer of this type of the rows of a function, or of a query, which has no signature."""
    if signature is not None and (len(signature.columns) or 1) not in (widths := widths_of(hint)):
        raise InvalidError(f"columns={len(signature.columns) or 1} wanted={widths.start} to {widths.stop - 1}")
    if (element := element_of(hint)) is not None:
        collection, made = _COLLECTIONS[get_origin(hint)], _itself if element in _SCALARS else _made(element)
        return lambda rows: collection(starmap(made, rows))
    made_of_one = _made(hint)

    def only(rows: list[Row]) -> Any:
        (row,) = rows
        return made_of_one(*row)

    return only


def _made(kind: Any) -> Make:
    """Return what makes a value of the columns of a row."""
    if kind is type(None):
        return _nothing
    if kind in _AS_THEY_ARE:
        return _itself
    if kind in _SCALARS or (isinstance(kind, type) and issubclass(kind, Enum)):
        return cast(Make, kind)
    if (fields := fields_of(kind)) is None:
        raise InvalidError(f"such an answer needs a method: {kind}")
    if any(fields_of(element_of(hint) or hint) for hint in fields.values()):
        raise InvalidError(f"such a field needs a method: {kind}")
    enums = {number: enum for number, hint in enumerate(fields.values()) if (enum := _enum(hint)) is not None}
    if not enums:
        return cast(Make, kind)

    def with_enums(*columns: Any) -> Any:
        row = list(columns)
        for number, enum in enums.items():
            if row[number] is not None:
                row[number] = enum(row[number])
        return kind(*row)

    return with_enums


def widths_of(hint: Any) -> range:
    """How many columns a row may have of which an answer, or one of its elements, is made."""
    kind = element_of(hint) or hint
    if kind is type(None):
        return _ANY_WIDTH
    if (fields := fields_of(kind)) is None:
        return range(1, 2)
    wanted = [each for each in inspect.signature(kind).parameters.values() if each.default is each.empty]
    return range(len(wanted), len(fields) + 1)


def fields_of(kind: Any) -> Mapping[str, Any] | None:
    """The fields of a tuple or data class, with their types; None for another type."""
    if not isinstance(kind, type) or not (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        return None
    return get_type_hints(kind)


def _enum(hint: Any) -> type[Enum] | None:
    """The enum that it is, or may be besides None."""
    return next((kind for kind in alternatives(hint) if isinstance(kind, type) and issubclass(kind, Enum)), None)


def element_of(hint: Any) -> Any:
    """The type of a collection's elements; None for what is no collection."""
    kinds = get_args(hint)
    is_one = get_origin(hint) in _COLLECTIONS and (get_origin(hint) is not tuple or kinds[1:] == (...,))
    return kinds[0] if is_one else None


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that it may be."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _itself(value: Any) -> Any:
    return value


def _nothing(*_: Any) -> None:
    """Of an operation without an answer."""
