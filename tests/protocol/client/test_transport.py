"""One request and its response over a connection."""

from __future__ import annotations

import io
import random
import socket
import struct
import threading

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.serial import entity_writer

from headrace.protocol.client.transport import WOKEN_BYTES, exchange, exchange_frame


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


def test_large_answers_are_read_whole_in_any_pieces() -> None:
    """The kernel wakes the reader late: neither the end of an answer nor the next one waits for more bytes."""
    rng = random.Random(1)
    answers = [rng.randbytes(size) for size in (3 * WOKEN_BYTES + 1, 5, WOKEN_BYTES + 7)]
    sent = b"".join(struct.pack(">i", len(answer)) + answer for answer in answers)

    def serve(other: socket.socket) -> None:
        view = memoryview(sent)
        while view:
            piece = rng.randint(1, 200_000)
            other.sendall(view[:piece])
            view = view[piece:]

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 60) as mine:
        other, _ = server.accept()
        with other:
            sending = threading.Thread(target=serve, args=(other,))
            sending.start()
            assert [exchange_frame(mine, b"request") for _ in answers] == answers
            sending.join()
