"""JSON Schema: a schema's columns, how a JSON value becomes them.

Place: used by registry.py and formats.py. jsonschema validates, its library `referencing` resolves references.
Patterns and the steps of the validator are limited: some keywords of its classes are replaced.

    pattern   RE2's syntax and time; what RE2 does not have (look-around, back references) by Python's `re`
    steps     each keyword that is applied counts; a value has so many for its bytes

Invariant of limits: a pattern in RE2's syntax takes time in proportion to the text. The steps end what references
multiply (a schema of 3 KB can apply a keyword 2^30 times). What is left, one step without an end, is ended with the
process that opens values (apart/).

| JSON Schema | column |
| --- | --- |
| object with properties | struct; at the top its properties are columns |
| object with a schema of additionalProperties only | map with strings as keys |
| array with a schema of items | list |
| string; with format date, date-time | string; date, timestamptz |
| integer, number, boolean | long, double, boolean |
| null and one other type (type, oneOf, anyOf) | that type |
| several types, no type, allOf, no properties, a reference to a part around it | string with the value as JSON |

Invariant: a value becomes a row only if the schema accepts it. Members that the schema accepts without naming them
have no column.
"""

from __future__ import annotations

import datetime
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import urljoin

import re2
from jsonschema import FormatChecker, exceptions
from jsonschema.exceptions import ValidationError
from jsonschema.validators import Draft202012Validator, extend, validator_for
from referencing import Registry, Resource
from referencing.jsonschema import specification_with

from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.values import columns as c
from headrace.tables.values.columns import ColumnPlan, ValueShape
from headrace.tables.values.inferred import parse_json
from headrace.tables.values.limits import PartCount, parsed_schema

PATTERN_CHARACTERS_MAX = 4_096
PROGRAM_BYTES = 1024 * 1024
"""Memory that one pattern's program and its automaton may take."""
STEPS = 100_000
"""Steps of a value without a byte."""
STEPS_PER_BYTE = 8

Search = Callable[[str], object]
"""Returns something that is not None or false if the pattern is in the text."""


@lru_cache(maxsize=1_000)
def compiled(pattern: str) -> Search:
    """ValueError if it is no pattern. The same syntax as ECMA 262, as far as both libraries have it."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"a pattern of more than {PATTERN_CHARACTERS_MAX} characters")
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES
    options.never_capture = True
    options.log_errors = False
    try:
        found: Search = re2.compile(pattern, options).search
    except re2.error:
        try:
            found = re.compile(pattern).search
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"not a pattern: {error}") from error
    return found


PATTERNS = FormatChecker(formats=())
"""Checks the patterns of a schema, and no other format."""


def _is_pattern(text: object) -> bool:
    return not isinstance(text, str) or compiled(text) is not None


PATTERNS.checks("regex", raises=ValueError)(_is_pattern)


class _Steps(threading.local):
    left = 0


_steps = _Steps()


def allow_steps(value_bytes: int) -> None:
    """Begin to validate a value of this size on this thread."""
    _steps.left = STEPS + STEPS_PER_BYTE * value_bytes


def limited(kind: Any) -> Any:
    """Return the validator class with patterns of RE2, and with keywords that count. ValueError from its validation:
    too many steps.
    """
    return _limited(kind)


@lru_cache(maxsize=20)
def _limited(kind: Any) -> Any:
    replaced = {"pattern": _pattern, "patternProperties": _pattern_properties}
    if "additionalProperties" in kind.VALIDATORS:
        replaced["additionalProperties"] = _additional(kind.VALIDATORS["additionalProperties"])
    keywords = {name: _counted(replaced.get(name, run)) for name, run in kind.VALIDATORS.items()}
    made = extend(kind, validators=keywords)
    evolve = made.evolve

    def evolved(self: Any, **changes: Any) -> Any:
        """Stay limited where a part of the schema names its draft: the library takes its own class there."""
        found = evolve(self, **changes)
        if type(found) is type(self):
            return found
        return limited(type(found))(found.schema, format_checker=found.format_checker, _resolver=found._resolver)

    made.evolve = evolved
    return made


def _counted(run: Callable[..., Any]) -> Callable[..., Any]:
    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _steps.left -= 1
        if _steps.left < 0:
            raise ValueError("validating the value takes too many steps")
        return run(validator, value, instance, schema)

    return keyword


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not compiled(pattern)(instance):
        yield ValidationError(f"{instance[:200]!r} does not match {pattern[:200]!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, part in patterns.items():
        search = compiled(pattern)
        for name, value in instance.items():
            if search(name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional(run: Callable[..., Any]) -> Callable[..., Any]:
    """The keyword without patterns of Python: of names that no pattern has, the library does the rest."""

    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        patterns = schema.get("patternProperties")
        if not patterns or not validator.is_type(instance, "object"):
            return run(validator, value, instance, schema)
        searches = [compiled(each) for each in patterns]
        rest = {name: each for name, each in instance.items() if not any(search(name) for search in searches)}
        return run(validator, value, rest, {key: each for key, each in schema.items() if key != "patternProperties"})

    return keyword


_NULL = {"type": "null"}


class JsonSchema:
    """A schema with its validator. SchemaError for one that is no schema, or that asks for columns no table has."""

    def __init__(self, name: str, text: str, resources: Mapping[str, str] | None = None) -> None:
        """`resources`: the schemas that this one refers to, by the name that the registry has for each."""
        count = PartCount()
        try:
            schema = parsed_schema(text)
            kind = limited(validator_for(schema, default=Draft202012Validator))
            allow_steps(len(text))
            kind.check_schema(schema, format_checker=PATTERNS)
            draft = specification_with(kind.META_SCHEMA.get("$id") or kind.META_SCHEMA["id"])
            root: Resource[Any] = draft.create_resource(schema)
            others: dict[str, Resource[Any]] = {
                name: Resource.from_contents(parsed_schema(each), default_specification=draft)
                for name, each in (resources or {}).items()
            }
            registry: Registry[Any] = Registry().with_resources(_named(root, others).items())
            self._validator = kind(schema, registry=registry)
            self._plan = c.top(_plan(schema, _Around(registry.resolver_with_root(root), (), count)))
        except SchemaError as error:
            raise SchemaError(f"{name}: {error}") from error
        except MemoryError:
            raise
        except exceptions.SchemaError as error:
            raise SchemaError(f"{name}: not a JSON Schema: {error.json_path}: {error.message[:200]}") from error
        except Exception as error:  # of any kind: the text is a client's, and libraries take it apart
            raise SchemaError(f"{name}: not a JSON Schema: {type(error).__name__}: {error}") from error
        assert self._plan.type is not None
        self.shape, self.parts = ValueShape(name, self._plan.type), count.parts

    def read(self, data: bytes) -> Any:
        """Return the columns of one value. MisfitError for what the schema does not accept."""
        value = parse_json(data)
        allow_steps(len(data))
        try:
            if (wrong := exceptions.best_match(self._validator.iter_errors(value))) is not None:
                raise MisfitError(f"not a value of {self.shape.name}: {wrong.json_path}: {wrong.message[:200]}")
            if value is None:
                return {}
            return (value if self._plan.convert is None else self._plan.convert(value)) or {}
        except (MisfitError, MemoryError):
            raise
        except Exception as error:  # of any kind: the value is a client's, and the schema, too
            raise MisfitError(f"not a value of {self.shape.name}: {error}") from error


def _named(root: Resource[Any], others: Mapping[str, Resource[Any]]) -> dict[str, Resource[Any]]:
    """Return the resources by each URI under which a `$ref` can name them: their `$id`, their name, and their name
    relative to the `$id` of a schema that refers to them.
    """
    bases = [found for each in (root, *others.values()) if (found := each.id())]
    relative = {urljoin(base, name): each for base in bases for name, each in others.items()}
    return relative | {each.id() or name: each for name, each in others.items()} | dict(others)


class _Around(NamedTuple):
    """What resolves the references of a part of a schema, and the parts around it."""

    resolver: Any
    inside: tuple[int, ...]
    counted: PartCount


def _plan(schema: Any, around: _Around) -> ColumnPlan:
    if id(schema) in around.inside or not isinstance(schema, dict):
        return ColumnPlan(c.STRING, _json_text)
    with around.counted.part():
        return _part(schema, around._replace(inside=(*around.inside, id(schema))))


def _part(schema: dict[str, Any], around: _Around) -> ColumnPlan:
    if "$ref" in schema:
        found = around.resolver.lookup(schema["$ref"])
        return _plan(found.contents, around._replace(resolver=found.resolver))
    for choice in ("oneOf", "anyOf"):
        if choice in schema:
            left = [each for each in schema[choice] if each != _NULL]
            return _plan(left[0], around) if len(left) == 1 else ColumnPlan(c.STRING, _json_text)
    kinds = schema.get("type", "object" if "properties" in schema else ())
    kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    if len(kinds) != 1 or "allOf" in schema:
        return ColumnPlan(None) if schema == _NULL else ColumnPlan(c.STRING, _json_text)
    match kinds[0]:
        case "object":
            return _object(schema, around)
        case "array":
            return _array(schema, around)
        case "string":
            return _FORMATS.get(schema.get("format", ""), ColumnPlan(c.STRING))
        case other:
            return _SCALARS[other]


def _object(schema: Any, around: _Around) -> ColumnPlan:
    if not schema.get("properties"):
        more = schema.get("additionalProperties")
        if not isinstance(more, dict):
            return ColumnPlan(c.STRING, _json_text)
        plan = _plan(more, around)
        return ColumnPlan(None) if plan.type is None else ColumnPlan(c.map_of(plan.type), partial(_map, plan))
    found = [(name, _plan(each, around)) for name, each in schema["properties"].items()]
    parts = [(name, c.column_name(name), plan) for name, plan in found if plan.type is not None]
    kind = c.struct_of((column, plan.type) for _, column, plan in parts)
    return ColumnPlan(kind, partial(_fields, parts))


def _array(schema: Any, around: _Around) -> ColumnPlan:
    if not isinstance(schema.get("items"), dict) or "prefixItems" in schema:
        return ColumnPlan(c.STRING, _json_text)
    plan = _plan(schema["items"], around)
    return ColumnPlan(None) if plan.type is None else ColumnPlan(c.list_of(plan.type), partial(_list, plan))


def _converted(plan: ColumnPlan, value: Any) -> Any:
    return value if value is None or plan.convert is None else plan.convert(value)


def _fields(parts: list[tuple[str, str, ColumnPlan]], value: Any) -> Any:
    return {column: _converted(plan, value[name]) for name, column, plan in parts if name in value}


def _map(plan: ColumnPlan, value: Any) -> Any:
    return [(key, _converted(plan, each)) for key, each in value.items()]


def _list(plan: ColumnPlan, value: Any) -> Any:
    return [_converted(plan, each) for each in value]


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _timestamp(text: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"a time without a zone: {text}")
    return found


_FORMATS = {"date": ColumnPlan(c.DATE, datetime.date.fromisoformat), "date-time": ColumnPlan(c.TIMESTAMPTZ, _timestamp)}
_SCALARS = {"integer": ColumnPlan(c.LONG, int), "number": ColumnPlan(c.DOUBLE, float), "boolean": ColumnPlan(c.BOOLEAN)}
