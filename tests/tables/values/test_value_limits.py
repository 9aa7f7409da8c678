"""What a client's schema or value may ask for: each bomb ends at a limit, with its reason, and in little time."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pyiceberg.io.pyarrow import schema_to_pyarrow

from headrace.storage.errors import UnavailableError
from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.rows import VALUED_SCHEMA
from headrace.tables.values import inferred, json_schema, limits, registry
from headrace.tables.values import open as opening
from headrace.tables.values.avro import AvroSchema
from headrace.tables.values.avro_bounds import DEPTH_MAX, ITEMS_MAX
from headrace.tables.values.inferred import InferredJson
from headrace.tables.values.json_schema import JsonSchema
from headrace.tables.values.open import ChunkOpener, Cut, LaterError, Tolerance
from headrace.tables.values.protobuf import ProtobufSchema
from headrace.tables.values.registry import RegistryFormat
from tests.tables.registry import FakeRegistry, wire
from tests.tables.values.test_apart import raw

pytestmark = pytest.mark.requirement("X11")

SCHEMA = schema_to_pyarrow(VALUED_SCHEMA, include_field_ids=False)
DOUBLINGS = 30


def record(*fields: Any, name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]})


def doubled_json() -> str:
    """References that double with each level: 3 KB."""
    defs: dict[str, Any] = {f"d{DOUBLINGS}": {"type": "string"}}
    for n in range(DOUBLINGS):
        inner = {"$ref": f"#/$defs/d{n + 1}"}
        defs[f"d{n}"] = {"type": "object", "properties": {"l": inner, "r": inner}}
    return json.dumps({"$defs": defs, "$ref": "#/$defs/d0"})


def doubled_avro() -> str:
    inner: Any = {"type": "record", "name": f"R{DOUBLINGS}", "fields": [{"name": "v", "type": "int"}]}
    for n in reversed(range(DOUBLINGS)):
        fields = [{"name": "l", "type": inner}, {"name": "r", "type": f"R{n + 1}"}]
        inner = {"type": "record", "name": f"R{n}", "fields": fields}
    return json.dumps(inner)


def doubled_protobuf() -> ProtobufSchema:
    file = FileDescriptorProto(name="x.proto", syntax="proto3")
    for n in range(DOUBLINGS):
        message = file.message_type.add(name=f"M{n}")
        for number, name in enumerate("lr", 1):
            message.field.add(name=name, number=number, type=11, label=1, type_name=f".M{n + 1}")  # type: ignore[arg-type]
    file.message_type.add(name=f"M{DOUBLINGS}").field.add(name="v", number=1, type=5, label=1)  # type: ignore[arg-type]
    return ProtobufSchema("s", base64.b64encode(file.SerializeToString()).decode())


def test_references_that_double_are_counted_while_they_are_expanded() -> None:
    for make in (
        lambda: JsonSchema("s", doubled_json()),
        lambda: AvroSchema("s", doubled_avro()),
        lambda: doubled_protobuf().open(b"\0"),
    ):
        with pytest.raises(SchemaError, match=f"more than {limits.PARTS_MAX} parts"):
            make()


def deep(depth: int) -> str:
    return '{"type": "array", "items": ' * depth + '"int"' + "}" * depth


AVRO_BOMBS = [
    (record(("x", {"type": "fixed", "name": "F", "size": 2**31})), "a fixed of 2147483648 bytes"),
    (record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 0})), "decimal of 0 digits"),
    (
        record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 4})),
        "scale must be less",
    ),
    (deep(3_000), "nested deeper than"),
    (deep(100), "nested deeper than"),
    (record(("x" * 300, "int")), "a field's name has more than 255 bytes"),
    (" " * (limits.SCHEMA_BYTES_MAX + 1), "the schema has more than"),
]


@pytest.mark.parametrize(("text", "reason"), AVRO_BOMBS, ids=[reason for _, reason in AVRO_BOMBS])
def test_a_schema_that_asks_for_too_much_is_named(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        AvroSchema("s", text)


JSON_BOMBS = [
    ({"properties": {"x": {"type": "string", "pattern": "("}}}, "is not a 'regex'"),
    ({"properties": {"x": {"$ref": 5}}}, "not a JSON Schema"),
    ({"properties": {"x" * 300: {"type": "string"}}}, "a field's name has more than 255 bytes"),
    ({"patternProperties": {"a" * 5_000: {}}}, "not a JSON Schema"),
]


@pytest.mark.parametrize(("schema", "reason"), JSON_BOMBS, ids=[reason for _, reason in JSON_BOMBS])
def test_a_json_schema_that_asks_for_too_much_is_named(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        JsonSchema("s", json.dumps(schema))


def test_patterns_of_json_schema_take_time_in_proportion_to_the_text() -> None:
    schema = {
        "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {"type": "integer"}},
        "additionalProperties": False,
    }
    parsed = JsonSchema("s", json.dumps(schema))
    assert parsed.read(b'{"a": "aaa"}') == {"a": "aaa"}
    assert parsed.read(b'{"bbb": 1}') == {}
    for value in ({"a": "a" * 50 + "!"}, {"b" * 50 + "!": 1}, {"bb": "x"}, {"c": 1}):
        with pytest.raises(MisfitError):
            parsed.read(json.dumps(value).encode())


def test_patterns_that_re2_does_not_have_are_pythons() -> None:
    parsed = JsonSchema("s", json.dumps({"properties": {"a": {"type": "string", "pattern": r"^(?=.*\d)(\w)\1"}}}))
    assert parsed.read(b'{"a": "xx1"}') == {"a": "xx1"}
    with pytest.raises(MisfitError, match="does not match"):
        parsed.read(b'{"a": "xy1"}')


@pytest.mark.parametrize("draft", ["", "http://json-schema.org/draft-07/schema#"])
def test_keywords_that_references_multiply_end(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a part of the schema names its draft: the library takes its own validator there."""
    monkeypatch.setattr(json_schema, "STEPS", 2_000)
    defs: dict[str, Any] = {f"d{DOUBLINGS}": {"type": "string"}}
    for n in range(DOUBLINGS):
        defs[f"d{n}"] = {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
    if draft:
        defs["d3"]["$schema"] = draft
    parsed = JsonSchema("s", json.dumps({"$defs": defs, "properties": {"a": {"$ref": "#/$defs/d0"}}}))
    with pytest.raises(MisfitError, match="too many steps"):
        parsed.read(b'{"a": "x"}')
    assert parsed.read(b"{}") == {}, "each value has its own"


def test_items_without_a_byte_and_endless_types_of_avro_end() -> None:
    nulls = AvroSchema("s", record(("x", {"type": "array", "items": "null"}), ("y", "int")))
    assert nulls.read(b"\x06\x00\x02") == {"y": 1}
    with pytest.raises(MisfitError, match=f"more than {ITEMS_MAX} items"):
        nulls.read(b"\x80\xc8\xaf\xa0\x25\x00\x02")
    node = json.dumps({"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]})
    parsed = AvroSchema("s", node)
    assert parsed.read(b"\x02\x02\x00") == {"n": '{"n": {"n": null}}'}
    with pytest.raises(MisfitError, match=f"deeper than {DEPTH_MAX}"):
        parsed.read(b"\x02" * 1_000_000 + b"\x00")
    with pytest.raises(MisfitError, match="deeper than"):
        AvroSchema("s", json.dumps({"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]})).read(b"")
    for short in (b"", b"\x02", b"\x04", b"\x80" * 11):
        with pytest.raises(MisfitError):
            parsed.read(short)


def test_refused_shapes_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inferred, "PARTS_KEPT", 3_000)
    monkeypatch.setattr(opening, "ROOM_PARTS_MAX", 3_000)
    form = InferredJson()
    opener = ChunkOpener(form, SCHEMA, Tolerance.ALL)
    values = [json.dumps({f"{n}_{i}": 1 for i in range(1_200)}).encode() for n in range(10)]
    values.append(json.dumps({f"x{i}": 1 for i in range(limits.PARTS_MAX)}).encode())
    assert len(opener.open(raw(*values)).dead) == 1, "one range"
    assert len(form._shapes) <= 3
    assert len(opener._room) <= 3
    reasons = ChunkOpener(form, SCHEMA, Tolerance.ALL).reasons(raw(*values, b'{"%s": null}' % (b"x" * 300)))
    assert reasons[0] == "a JSON value: the table would have more than 1000 columns"
    assert reasons[10] == f"a JSON value has more than {limits.PARTS_MAX} names"
    assert reasons[11].startswith("a field's name has more than 255 bytes")


def test_a_value_that_is_too_large_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VALUE_BYTES_MAX", 100)
    values = [b'{"a": 1}', json.dumps({"a": "x" * 100}).encode()]
    opener = ChunkOpener(InferredJson(), SCHEMA, Tolerance.INVALID_DATA)
    assert opener.reasons(raw(*values)) == ["", "the value has 109 bytes: at most 100 are opened"]


def test_a_chunk_is_opened_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PORTION_BYTES", 30)
    wide = SCHEMA.append(pa.field("a", pa.int64()))
    values = [None if n % 5 == 0 else json.dumps({"a": n}).encode() for n in range(50)]
    opened = ChunkOpener(InferredJson(), wide, Tolerance.ALL).open(raw(*values))
    assert opened.rows.column("a").to_pylist() == [None if n % 5 == 0 else n for n in range(50)]
    assert opened.rows.column("a").num_chunks > 10


@pytest.fixture
def served() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        yield running


def test_ids_of_a_chunk_are_asked_for_at_once_and_not_endlessly(
    served: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "IDS_MAX", 17)
    known = served.register({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    form, wide = RegistryFormat(served.url), SCHEMA.append(pa.field("n", pa.int32()))
    values = [wire(known, b"\x02"), *(wire(100 + n % 50, b"") for n in range(300)), wire(known, b"\x04")]
    together = threading.Barrier(4, timeout=60)
    answer = served.answer

    def counted(path: str) -> tuple[int, Any]:
        if not path.endswith(f"/{known}"):
            together.wait()
        return answer(path)

    served.answer = counted  # type: ignore[method-assign]
    opened = ChunkOpener(form, wide, Tolerance.ALL).open(raw(*values))
    assert served.asked == 17, "one known id, and 16 in fours"
    assert (opened.rows.num_rows, opened.dead[0].end, opened.cuts) == (1, 17, {0: Cut(17)})
    served.answer = answer  # type: ignore[method-assign]
    form.begin([])
    with pytest.raises(LaterError):
        form.open(wire(999, b""))
    assert form.open(values[0])[1] == {"n": 1}
    form.close()


def test_an_id_that_is_registered_later_is_known_in_the_next_chunk(served: FakeRegistry) -> None:
    form, value = RegistryFormat(served.url), wire(1, b"\x02")
    form.begin([value])
    with pytest.raises(MisfitError, match="does not know schema 1"):
        form.open(value)
    served.register("int")
    with pytest.raises(MisfitError):
        form.open(value)
    form.begin([value])
    assert form.open(value)[1] == {"value": 1}
    form.close()


def test_answers_of_a_registry_are_limited(served: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    large = served.register({"type": "string", "doc": "x" * 2_000})
    small = served.register("int")
    monkeypatch.setattr(registry, "ANSWER_BYTES_MAX", 1_000)
    form = RegistryFormat(served.url)
    with pytest.raises(SchemaError, match="the registry answers with more than 1000 bytes"):
        form.open(wire(large, b""))
    assert form.open(wire(small, b"\x02"))[1] == {"value": 1}
    form.close()
    form = RegistryFormat(served.url)
    monkeypatch.setattr(registry, "ANSWER_SECONDS_MAX", -1.0)
    with pytest.raises(UnavailableError, match="takes more than"):
        form.open(wire(small, b"\x02"))
    form.close()


def test_references_of_a_registry_are_looked_up_once(served: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 20 schemas refers to the next one twice."""
    served.register({"type": "string"}, "JSON", "s0")
    for n in range(1, 20):
        refers = [{"name": name, "subject": f"s{n - 1}", "version": 1} for name in (f"{n}a", f"{n}b")]
        served.register({"type": "object", "properties": {"x": {"$ref": f"{n}a"}}}, "JSON", f"s{n}", refers)
    form = RegistryFormat(served.url)
    assert form.open(wire(20, b"{}"))[1] == {}
    assert served.asked < 60
    monkeypatch.setattr(registry, "REFERENCES_MAX", 5)
    with pytest.raises(SchemaError, match="refers to more than 5 others"):
        RegistryFormat(served.url).open(wire(20, b"{}"))
    form.close()
