"""A schema registry in this process, with the two requests that readers send. A real one is in test_karapace.py."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import fastavro
from google.protobuf.descriptor_pb2 import FileDescriptorProto


class FakeRegistry:
    """Its schemas by id. `is_away`: it answers with an error."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.versions: dict[str, int] = {}
        self.descriptors: dict[int, str] = {}
        """Of schemas of Protobuf: serialized, in base64."""
        self.is_away = False
        self.asked = 0
        self.url = ""

    def register(self, schema: Any, kind: str = "AVRO", subject: str = "", references: Any = ()) -> int:
        """Return the schema's id."""
        schema_id = len(self.schemas) + 1
        self.schemas[schema_id] = {"schema": json.dumps(schema), "schemaType": kind, "references": list(references)}
        if subject:
            self.versions[f"/subjects/{subject}/versions/1"] = schema_id
        return schema_id

    def register_protobuf(self, proto: FileDescriptorProto, subject: str = "", references: Any = ()) -> int:
        """Return the schema's id. Its text is not what a parser would take."""
        schema_id = self.register("a text", "PROTOBUF", subject, references)
        self.descriptors[schema_id] = base64.b64encode(proto.SerializeToString()).decode()
        return schema_id

    def avro(self, schema_id: int, value: Any) -> bytes:
        """Return a value in the wire format."""
        named: dict[str, Any] = {}
        for each in self.schemas[schema_id]["references"]:
            referred = self.versions[f"/subjects/{each['subject']}/versions/1"]
            fastavro.parse_schema(json.loads(self.schemas[referred]["schema"]), named_schemas=named)
        schema = fastavro.parse_schema(json.loads(self.schemas[schema_id]["schema"]), named_schemas=named)
        return wire(schema_id, avro_bytes(schema, value))

    def answer(self, path: str) -> tuple[int, Any]:
        """Return status and body."""
        self.asked += 1
        path, _, query = path.partition("?")
        is_serialized = "format=serialized" in query
        if self.is_away:
            return 503, {"error_code": 50301, "message": "away"}
        if path in self.versions:
            schema_id = self.versions[path]
            found = self._schema(schema_id, is_serialized=is_serialized)
            return 200, {"id": schema_id, "subject": path.split("/")[2], "version": 1, **found}
        number = int(path.rpartition("/")[2])
        if number in self.schemas:
            return 200, self._schema(number, is_serialized=is_serialized)
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _schema(self, schema_id: int, *, is_serialized: bool) -> dict[str, Any]:
        found = self.schemas[schema_id]
        return found | {"schema": self.descriptors[schema_id]} if is_serialized else found

    @contextmanager
    def running(self) -> Iterator[FakeRegistry]:
        """Listen."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = registry.answer(self.path)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_port}"
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


def wire(schema_id: int, data: bytes) -> bytes:
    """Return the value in Confluent's wire format."""
    return struct.pack(">bI", 0, schema_id) + data


def avro_bytes(schema: Any, value: Any) -> bytes:
    """Return one value of a schema."""
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, schema, value)
    return buffer.getvalue()
