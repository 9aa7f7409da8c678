"""References of JSON Schema: by a name in the registry, relative to a `$id`, and to a part of another schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import pyarrow as pa

from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.values import columns as c
from headrace.tables.values.json_schema import JsonSchema

pytestmark = pytest.mark.requirement("X11")

ZIP: dict[str, Any] = {"type": "object", "properties": {"zip": {"type": "integer"}}, "required": ["zip"]}
COLUMNS = pa.struct([("to", pa.struct([("zip", c.LONG)]))])


def order(ref: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"to": {"$ref": ref}}, **more}


@pytest.mark.parametrize(
    ("schema", "resources"),
    [
        (order("address.json"), {"address.json": ZIP}),
        (order("address.json", **{"$id": "https://a.example/x/order.json"}), {"address.json": ZIP}),
        (order("https://a.example/address.json"), {"address": {"$id": "https://a.example/address.json", **ZIP}}),
        (
            order("address.json", **{"$id": "https://a.example/order.json"}),
            {"address.json": {"$id": "https://b.example/other.json", **ZIP}},
        ),
        (order("all.json#/$defs/Address"), {"all.json": {"$defs": {"Address": ZIP}}}),
        (
            order("to.json"),
            {"zip.json": ZIP, "to.json": {"$id": "https://a.example/to.json", "$ref": "zip.json"}},
        ),
        (
            order("old.json"),
            {"old.json": {"$schema": "http://json-schema.org/draft-07/schema#", **ZIP}},
        ),
        (order("a.json"), {"zip.json": ZIP, "b.json": {"$ref": "zip.json"}, "a.json": {"$ref": "b.json"}}),
    ],
    ids=["name", "relative", "$id", "name and another $id", "part", "nested", "another draft", "chain"],
)
def test_references_are_resolved(schema: dict[str, Any], resources: dict[str, Any]) -> None:
    texts = {name: json.dumps(each) for name, each in resources.items()}
    parsed = JsonSchema("s", json.dumps(schema), texts)
    assert parsed.shape.columns == COLUMNS
    assert parsed.read(b'{"to": {"zip": 1010}}') == {"to": {"zip": 1010}}
    with pytest.raises(MisfitError, match="not of type 'integer'"):
        parsed.read(b'{"to": {"zip": "x"}}')
    with pytest.raises(MisfitError, match="is a required property"):
        parsed.read(b'{"to": {}}')


def test_a_reference_that_is_missing_is_named() -> None:
    with pytest.raises(SchemaError, match=r"Unresolvable: .*address\.json"):
        JsonSchema("s", json.dumps(order("address.json")), {"other.json": "{}"})


def test_schemas_that_refer_to_each_other_end() -> None:
    a = {"$id": "https://a.example/a.json", "type": "object", "properties": {"b": {"$ref": "b.json"}}}
    b = {"type": "object", "properties": {"a": {"$ref": "a.json"}, "n": {"type": "integer"}}}
    parsed = JsonSchema("s", json.dumps(a), {"b.json": json.dumps(b)})
    assert parsed.shape.columns == pa.struct([("b", pa.struct([("a", c.STRING), ("n", c.LONG)]))])
    assert parsed.read(b'{"b": {"a": {"b": {"n": 1}}, "n": 2}}') == {"b": {"a": '{"b": {"n": 1}}', "n": 2}}
