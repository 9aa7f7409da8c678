"""Limits of what a schema registry answers: bytes of a body, and seconds for the whole of it.

Place: put into the HTTP session of confluent-kafka's client (registry.py): its time-out counts from byte to byte.
Invariant: no answer makes a worker keep more than ANSWER_BYTES_MAX, or wait longer than ANSWER_SECONDS_MAX.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.tables.values.limits import SCHEMA_BYTES_MAX

ANSWER_BYTES_MAX = 4 * SCHEMA_BYTES_MAX
"""A schema as JSON in JSON, where each quotation mark has a backslash."""
ANSWER_SECONDS_MAX = 20.0


class AnswerTooLargeError(Exception):
    """The registry answers with more bytes than a schema may have."""


def limit_answers(client: Any, monotonic: Callable[[], float] = time.monotonic) -> None:
    """Read the answers to this client (SchemaRegistryClient) within the limits. AnswerTooLargeError, TimeoutError."""

    def read(response: Any) -> None:
        ends, body = monotonic() + ANSWER_SECONDS_MAX, bytearray()
        for part in response.iter_bytes():
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise AnswerTooLargeError(f"the registry answers with more than {ANSWER_BYTES_MAX} bytes")
            if monotonic() > ends:
                raise TimeoutError(f"the registry's answer takes more than {ANSWER_SECONDS_MAX:.0f} s")
        response._content = bytes(body)

    client._rest_client.session.event_hooks["response"].append(read)
