"""Calls of operations with arguments that change while the caller waits.

Place: the contract suites and the metastore's own tests patch each class of the boundary (`spoil_arguments`), so that
each of their calls proves that the operation keeps no argument: what it was asked is what it got, not what the
caller's list or dict became during its awaits. Invariant: a test sees no difference unless the operation looks at an
argument after its first await, or keeps one; its own arguments are never changed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import pytest

from headrace.metastore.api import metastore as boundary
from headrace.metastore.postgres.store import PostgresMetastore
from tests.nouns import NOUNS, page_of, postgres_nouns

T = TypeVar("T")
JUNK = "changed by the caller meanwhile"
_PLAIN_WORDS = re.compile(r"(int|float|str|bytes|bool|None|[ |])+")
"""Annotations of what cannot be changed; all modules of the boundary postpone their evaluation, so they are text."""


def operations() -> dict[str, str]:
    """Return the operations of the boundary that wait, with the names of the Protocols that have them."""
    found: dict[str, str] = {}
    for protocol in boundary_protocols():
        for name, member in vars(protocol).items():
            if inspect.iscoroutinefunction(member):
                found[name] = protocol.__name__
    return found


def boundary_protocols() -> list[type]:
    """Return all Protocols that the metastore implements."""
    pages = (boundary.Metastore, *map(page_of, NOUNS))
    return [each for page in pages for each in page.__mro__ if each.__module__.startswith("headrace.metastore.api")]


def spoil_arguments(patch: pytest.MonkeyPatch, *implementations: type) -> None:
    """Wrap each operation of the boundary that one of the classes has, or a noun of PostgresMetastore."""
    names = operations()
    made = postgres_nouns().values() if PostgresMetastore in implementations else ()
    for part in {part for implementation in (*implementations, *made) for part in implementation.__mro__}:
        for name in names.keys() & vars(part).keys():
            method = getattr(part, name)
            if inspect.iscoroutinefunction(method) and not hasattr(method, "is_spoiled"):
                patch.setattr(part, name, spoiled(method))


def takes_copies(fake: type[T]) -> type[T]:
    """Make each operation of a fake copy its arguments before it waits, as what is sent to Postgres is a copy."""
    for name, method in list(vars(fake).items()):
        if inspect.iscoroutinefunction(method):
            setattr(fake, name, _on_copies(method))
    return fake


def _on_copies(operation: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(operation)
    async def call(self: object, *args: Any, **kwargs: Any) -> Any:
        return await operation(self, *map(_deep, args), **{name: _deep(arg) for name, arg in kwargs.items()})

    return call


def spoiled(operation: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the operation, with arguments that change when it waits for the first time, or else at its end."""

    @functools.wraps(operation)
    async def call(self: object, *args: Any, **kwargs: Any) -> Any:
        own, named = [_mutable(arg) for arg in args], {name: _mutable(arg) for name, arg in kwargs.items()}
        return await _Call(operation(self, *own, **named), [*own, *named.values()])

    call.is_spoiled = True  # type: ignore[attr-defined]
    return call


class _Call:
    """The call under way."""

    def __init__(self, work: Coroutine[Any, Any, Any], arguments: list[Any]) -> None:
        self._work, self._arguments = work, arguments

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        try:
            waits = next(steps)
        except StopIteration as end:
            return end.value
        finally:
            for argument in self._arguments:
                _spoil(argument)
        while True:
            try:
                answer = yield waits
            except BaseException as error:
                step = functools.partial(steps.throw, error)
            else:
                step = functools.partial(steps.send, answer)
            try:
                waits = step()
            except StopIteration as end:
                return end.value


def _mutable(value: Any) -> Any:
    """Return an equal argument, with separate lists, dicts and sets."""
    if isinstance(value, AbstractSet):
        return set(value)
    return dict(value) if isinstance(value, Mapping) else _deep(value)


def _deep(value: Any) -> Any:
    """Keep the type, which may be a part of what is asked."""
    kind: Any = type(value)
    if _is_plain(kind):
        return value
    if isinstance(value, list):
        return value[:] if _are_plain(value) else [_deep(each) for each in value]
    if isinstance(value, set):
        return set(value)
    if isinstance(value, dict):
        return {key: _deep(each) for key, each in value.items()}
    if isinstance(value, tuple):
        if _are_plain(value):
            return value
        return kind(*map(_deep, value)) if hasattr(kind, "_fields") else tuple(map(_deep, value))
    parts = {name: getattr(value, name) for name in _parts_given(kind)}
    changed = {name: _deep(each) for name, each in parts.items() if isinstance(each, list | dict | tuple)}
    return dataclasses.replace(value, **changed) if changed else value


def _spoil(value: Any) -> None:
    kind: Any = type(value)
    if _is_plain(kind):
        return
    if isinstance(value, list | tuple):
        if not _are_plain(value):
            for each in value:
                _spoil(each)
        if isinstance(value, list):
            value[:] = [JUNK]
    elif isinstance(value, dict):
        value.clear()
        value[JUNK] = JUNK
    elif isinstance(value, set):
        value.clear()
        value.add(JUNK)
    else:
        for name in _parts(kind):
            _spoil(getattr(value, name))


def _are_plain(values: Iterable[Any]) -> bool:
    kinds: set[Any] = set(map(type, values))
    return all(map(_is_plain, kinds))


@functools.cache
def _is_plain(kind: Any) -> bool:
    """Return whether a value of this type holds nothing that can be changed: asked for each of a million values."""
    return not issubclass(kind, list | dict | set | tuple) and not _parts(kind)


@functools.cache
def _parts(kind: Any) -> tuple[str, ...]:
    """Return the fields of a data class that may hold more than numbers, text and bytes."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return tuple(field.name for field in fields if not _PLAIN_WORDS.fullmatch(str(field.type)))


@functools.cache
def _parts_given(kind: Any) -> tuple[str, ...]:
    """Return those that its initializer takes."""
    given = {field.name for field in dataclasses.fields(kind) if field.init}
    return tuple(name for name in _parts(kind) if name in given)


def implementations() -> dict[str, Any]:
    """Return what implements each operation of the boundary in Postgres."""
    made = (PostgresMetastore, *postgres_nouns().values())
    return {name: next(getattr(part, name) for part in made if hasattr(part, name)) for name in operations()}
