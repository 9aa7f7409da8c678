"""JSON Schema: a schema's columns, and how a JSON value becomes them.

| JSON Schema | column |
| --- | --- |
| object with properties | struct; at the top its properties are columns |
| object with a schema of additionalProperties only | map with strings as keys |
| array with a schema of items | list |
| string; with format date, date-time | string; date, timestamptz |
| integer, number, boolean | long, double, boolean |
| null and one other type (type, oneOf, anyOf) | that type |
| anything else: several types, no type, allOf, an object without properties, a reference to a part around it | string
with the value as JSON |

Place: used by registry.py and formats.py. jsonschema validates, its library `referencing` resolves references.
Invariant: a value becomes a row only if the schema accepts it. Members that the schema accepts without naming them have
no column.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urljoin

from jsonschema import exceptions
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry, Resource
from referencing.jsonschema import specification_with

from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.values import columns as c
from headrace.tables.values.columns import ColumnPlan, ValueShape
from headrace.tables.values.inferred import parse_json
from headrace.tables.values.limits import PartCount, parsed_schema
from headrace.tables.values.patterns import PATTERNS, allow_steps, limited

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
