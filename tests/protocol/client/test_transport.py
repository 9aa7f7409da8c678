"""One request and its response over a connection."""

from __future__ import annotations

import io
import socket
import struct

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.serial import entity_writer

from headrace.protocol.client.transport import exchange


def test_a_response_with_bytes_is_read() -> None:
    """kio reads fields of bytes from memory that nothing can change."""
    answer = SaslAuthenticateResponse(error_code=ErrorCode.none, error_message=None, auth_bytes=b"proof")
    body = io.BytesIO()
    entity_writer(SaslAuthenticateResponse)(body, answer)
    mine, other = socket.socketpair()
    with mine, other:
        header = struct.pack(">i", 1) + b"\0"
        other.sendall(struct.pack(">i", len(header) + len(body.getvalue())) + header + body.getvalue())
        request = SaslAuthenticateRequest(auth_bytes=b"who")
        assert exchange(mine, "test", request, SaslAuthenticateResponse) == answer
