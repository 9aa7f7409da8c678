"""The attributes of spans, bounded: what a client sends is cut, and nothing of a record is in them.

Place: under produce_spans.py and fetch_spans.py. Pure.
Invariant: an attribute is a number, a name of Kafka's, or at most `TEXT_MAX` characters; a span has at most 16.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.protocol.request import Request

TEXT_MAX = 128
"""Most characters of a client id or a topic's name."""
ERRORS_MAX = 8
"""Different errors that one span names."""

AttributeValue = str | int | bool | tuple[str, ...]
Attributes = dict[str, AttributeValue]


def text(value: object) -> str:
    """Cut to a bounded length; control characters escaped."""
    cut = str(value)[:TEXT_MAX]
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode("ascii")[:TEXT_MAX]


def of_request(request: Request) -> Attributes:
    """Return what every request has."""
    connection = request.connection
    return {
        "messaging.system": "kafka",
        "messaging.client.id": text(request.client_id or ""),
        "client.address": text(connection.peer.rpartition(":")[0]),
        "headrace.listener": text(connection.listener),
        "headrace.request.version": request.api_version,
        "headrace.request.bytes": len(request.body),
    }


def error_names(names: Collection[str]) -> tuple[str, ...]:
    """The first of them in order, each once."""
    return tuple(sorted(set(names))[:ERRORS_MAX])
