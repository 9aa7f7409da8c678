"""Writes an entity with very many elements piece by piece, so that its caller can let other tasks run in between.

Place: under protocol/typed.py, for answers that list what a whole cluster has; kio writes 100,000 partitions in half a
second without a pause.
Definitions: the *elements* of an entity are the entities in it, at any depth. An entity with fewer than BLOCK of them
is written at once by kio. Of a larger one, kio writes everything but its arrays of entities, which are written here,
one element after the other.
Invariant: the bytes are those that kio writes. `did` is awaited after at most BLOCK elements.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

from kio.serial import entity_writer

Did = Callable[[int], Awaitable[None]]
"""Called with the units of work that were done; a unit is about a microsecond of CPU. It may let other tasks run."""
BLOCK = 512
"""Elements that are written at once."""
ELEMENT_UNITS = 8
"""What an element costs."""
_NESTED: dict[type, tuple[str, ...]] = {}
"""What `_nested` found; a process has some hundred types of entities."""
_NUMBERS_PER_ELEMENT = 16
"""Numbers in an array that cost as much as an element."""


async def write_long(body: io.BytesIO, entity: Any, did: Did) -> None:
    """Write the entity, in any number of steps."""
    size = size_of(entity, BLOCK)
    arrays = {} if size < BLOCK else _arrays(entity)
    if not arrays:
        entity_writer(type(entity))(body, entity)
        await did(ELEMENT_UNITS * size)
        return
    frame = io.BytesIO()
    gaps = {name: _Gap(len(elements), frame) for name, elements in arrays.items()}
    entity_writer(type(entity))(frame, replace(entity, **gaps))
    around, written = frame.getbuffer(), 0
    for name, elements in arrays.items():
        body.write(around[written : gaps[name].at])
        written = gaps[name].at
        await _write_elements(body, elements, did)
    body.write(around[written:])


async def _write_elements(body: io.BytesIO, elements: Sequence[Any], did: Did) -> None:
    """Write the elements of an array; several small ones are one step."""
    write, waiting = entity_writer(type(elements[0])), 0
    for element in elements:
        size = size_of(element, BLOCK)
        if size >= BLOCK:
            await write_long(body, element, did)
            continue
        write(body, element)
        waiting += size
        if waiting >= BLOCK:
            await did(ELEMENT_UNITS * waiting)
            waiting = 0
    await did(ELEMENT_UNITS * waiting)


class _Gap:
    """An array without its elements: kio writes the length."""

    def __init__(self, length: int, body: io.BytesIO) -> None:
        self._length, self._body = length, body
        self.at = 0
        """Where the elements belong."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self.at = self._body.tell()
        return iter(())


def size_of(entity: Any, enough: int) -> int:
    """Return the number of elements in the entity and itself; it stops counting at about `enough`."""
    size = 1
    for name in _nested(type(entity)):
        value = getattr(entity, name)
        if not value or size >= enough:
            continue
        if is_dataclass(value):
            size += size_of(value, enough - size)
        elif not is_dataclass(value[0]):
            size += len(value) // _NUMBERS_PER_ELEMENT
        elif not _nested(type(value[0])):
            size += len(value)
        else:
            for element in value:
                size += size_of(element, enough - size)
                if size >= enough:
                    break
    return size


def _arrays(entity: Any) -> dict[str, Sequence[Any]]:
    """Return its arrays of entities that have any, in the order in which they are written: tagged fields are last, and
    are left to kio."""
    found = {}
    for field in fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, Sequence) and value and is_dataclass(value[0]) and "tag" not in field.metadata:
            found[field.name] = value
    return found


def _nested(cls: Any) -> tuple[str, ...]:
    """Return the names of fields that are arrays or entities."""
    if cls not in _NESTED:
        _NESTED[cls] = _find_nested(cls)
    return _NESTED[cls]


def _find_nested(cls: Any) -> tuple[str, ...]:
    return tuple(
        field.name
        for field in fields(cls)
        if str(field.type).startswith("tuple[") or any(map(is_dataclass, (field.type, *get_args(field.type))))
    )
