"""An operation that is one call of one statement, declared in one line of its noun's class.

Place: between a method of a Protocol, which says what goes in and comes out, and the Statement that it calls.
Invariant of answers: pure. The answer is made of the only row, or it is a collection of what is made of each row: a
scalar, an enum, or a tuple of the columns, in which enums are such. A type that needs more, as packed extents do, is
an InvalidError.

    drop_files = calls(FileApi.drop_files, writes=True, ids="file_ids")

Invariant: what a line means is worked out once, when the class is made; a mistake in it is an InvalidError then.
- An argument goes to the SQL parameter of its name, or to the one that the line names. A tuple's fields go to those
  of their names, so a JobToken is job_id and epoch. A sequence becomes an array before the call waits;
  `"tokens.epoch"` is the array of its elements' epochs.
- The answer is made of the only row, or of each row.
What needs more than this is a method: a look at the answer, an order, an argument that is more than one array.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum
from itertools import starmap
from operator import attrgetter
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from headrace.config.settings import Settings
from headrace.metastore.postgres.packing import pack_int8, pack_uuids
from headrace.metastore.postgres.sql_files import Signature, signatures
from headrace.metastore.postgres.statement import Pool, Statement
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


P = ParamSpec("P")
R = TypeVar("R")
Convert = Callable[[Any], Any]

_ARRAY = re.compile(r"%\((\w+)\)s::(\w+)\[\]")
_PACKED: Mapping[str, Convert] = {"uuid": pack_uuids, "bigint": pack_int8}


class Connected(NamedTuple):
    """What all nouns share: the connections, and facts as they were when they were opened."""

    pool: Pool
    readers: Pool
    """For what may take long: it takes no connection from commits."""
    settings: Settings
    cluster_id: str
    incarnation_id: uuid.UUID
    commit_shards: int


class PostgresNoun:
    """A noun of PostgresMetastore, or a part of one."""

    def __init__(self, at: Connected) -> None:
        self.at = at
        self.pool, self.readers, self.settings, self.cluster_id = at.pool, at.readers, at.settings, at.cluster_id


def calls(
    operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
    name: str = "",
    /,
    *,
    writes: bool,
    in_any_life: bool = False,
    by_readers: bool = False,
    **sources: str,
) -> Callable[Concatenate[PostgresNoun, P], Coroutine[Any, Any, R]]:
    """Implement a Protocol's operation by the Statement `name`, or else by the one of the operation's name.

    `sources`: by SQL parameter the argument that goes to it, or the part of one, where their names differ.
    `by_readers`: on a connection of readers. InvalidError if the operation and the statement do not fit together.
    """
    statement = Statement(name or operation.__name__, writes=writes, in_any_life=in_any_life)
    signature, hints = inspect.signature(operation), get_type_hints(operation)
    try:
        parameters = _parameters(signature, hints, statement, sources)
        answer = answer_of(hints["return"], signatures().get(statement.name))
    except InvalidError as error:
        raise InvalidError(f"{operation.__qualname__} is no call of {statement.name}: {error}") from error

    async def call(self: PostgresNoun, /, *args: P.args, **kwargs: P.kwargs) -> R:
        pool = self.readers if by_readers else self.pool
        found: R = answer(await statement.send(pool, parameters(args, kwargs)))
        return found

    for attribute in ("__name__", "__qualname__", "__doc__", "__annotations__"):
        setattr(call, attribute, getattr(operation, attribute))
    vars(call).update(__signature__=signature, statement=statement, widths=widths_of(hints["return"]))
    return call


def _parameters(
    signature: inspect.Signature, hints: Mapping[str, Any], statement: Statement, sources: Mapping[str, str]
) -> Callable[[Sequence[Any], Mapping[str, Any]], dict[str, Any]]:
    """Return what makes the statement's parameters of the arguments of a call, without `self`."""
    declared = {name: each for name, each in signature.parameters.items() if name != "self"}
    defaults = {name: each.default for name, each in declared.items() if each.default is not each.empty}
    order, count = tuple(declared), len(declared)
    plan = _plan({name: hints[name] for name in order}, statement, sources)

    def in_order(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        rest = order[len(args) :]
        if len(args) > count or any(name not in rest for name in kwargs):
            signature.bind(None, *args, **kwargs)  # a TypeError that says what is wrong
        try:
            return [*args, *[kwargs[name] if name in kwargs else defaults[name] for name in rest]]
        except KeyError:
            signature.bind(None, *args, **kwargs)  # so does this
            raise

    def made(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if kwargs or len(args) != count:
            args = in_order(args, kwargs)
        return {name: args[at] if convert is None else convert(args[at]) for name, at, convert in plan}

    return made


def _plan(
    hints: Mapping[str, Any], statement: Statement, sources: Mapping[str, str]
) -> list[tuple[str, int, Convert | None]]:
    """(SQL parameter, the place of its argument, how that becomes its value)."""
    given = [(parameter, *source.partition(".")[::2]) for parameter, source in sources.items()]
    renamed = {argument for _, argument, _ in given}
    if renamed - hints.keys():
        raise InvalidError(f"no such arguments: {','.join(sorted(renamed - hints.keys()))}")
    for argument in hints.keys() - renamed:
        fields = fields_of(hints[argument])
        given += [(argument, argument, "")] if fields is None else [(field, argument, field) for field in fields]
    if sorted(name for name, _, _ in given) != sorted(statement.parameters):
        names = ",".join(sorted(name for name, _, _ in given))
        raise InvalidError(f"parameters={','.join(sorted(statement.parameters))} given={names}")
    places, arrays = list(hints), dict(_ARRAY.findall(statement.sql.decode()))
    return [
        (name, places.index(argument), _converted(f"{argument}.{part}", hints[argument], part, arrays.get(name)))
        for name, argument, part in given
    ]


def _converted(source: str, hint: Any, part: str, element: str | None) -> Convert | None:
    """Return what makes the value of a parameter: an array, if it has an element type; None: it is sent as it is."""
    kinds = alternatives(hint)
    sequences = [kind for kind in kinds if get_origin(kind) in (list, Sequence)]
    if bool(sequences) != (element is not None) or any(get_origin(kind) for kind in kinds if kind not in sequences):
        raise InvalidError(f"a sequence goes to an array, and nothing else does: {source.rstrip('.')}")
    if part and not hasattr(get_args(sequences[0])[0] if sequences else hint, part):
        raise InvalidError(f"there is no {source}")
    if element is None:
        return attrgetter(part) if part else None
    pack = _PACKED.get(element, list)
    if part:
        read = attrgetter(part)
        return lambda value: pack([read(each) for each in value])
    return (lambda value: None if value is None else pack(value)) if type(None) in kinds else pack
