"""Keys, values and header values as text for people. Pure.

Place: under the pages of records; templates escape the text for HTML.
Invariant: at most `bytes_max` bytes are looked at, and what was cut off is said. Characters that are not visible, or
that change the order of others, are shown by their numbers, so a record cannot look like another one. JSON is indented
only if that loses nothing.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from headrace.storage.client_text import visible

PRETTY_BYTES_MAX = 256 * 1024
"""JSON beyond it is shown as it was sent."""
HEX_BYTES_MAX = 4096
_ROW_BYTES = 16


class ShownBytes(NamedTuple):
    """`kind` is null, empty, json, text or hex; `size` the length of all bytes; `cut` whether some are not shown."""

    kind: str
    text: str
    size: int
    cut: bool = False


class _LossyError(Exception):
    """The text would not be the same after decoding and encoding."""


def show_bytes(data: bytes | None, bytes_max: int) -> ShownBytes:
    """One field of a record."""
    if data is None:
        return ShownBytes("null", "", 0)
    if not data:
        return ShownBytes("empty", "", 0)
    part = data[:bytes_max]
    cut = len(part) < len(data)
    try:
        text = _decode(part, cut)
    except UnicodeDecodeError:
        return _hex(data, bytes_max)
    if any(character < " " and character not in "\t\n\r" for character in text):
        return _hex(data, bytes_max)
    if not cut and (pretty := _pretty(text)) is not None:
        return ShownBytes("json", visible(pretty), len(data))
    return ShownBytes("text", visible(text), len(data), cut)


def _decode(part: bytes, cut: bool) -> str:
    """A character at the end may be cut in two."""
    for shorter in range(4 if cut else 1):
        try:
            return part[: len(part) - shorter].decode()
        except UnicodeDecodeError as error:
            if error.start < len(part) - 3:
                raise
    return part.decode()


def _pretty(text: str) -> str | None:
    """Return None if it is no JSON object or array, or if decoding it loses something."""
    if not text.lstrip().startswith(("{", "[")) or len(text) > PRETTY_BYTES_MAX:
        return None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_float=_number, parse_constant=_number)
        return json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError, _LossyError):
        return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _LossyError
    return found


def _number(text: str) -> float:
    value = float(text)
    if repr(value) != text:
        raise _LossyError
    return value


def _hex(data: bytes, bytes_max: int) -> ShownBytes:
    part = data[: min(bytes_max, HEX_BYTES_MAX)]
    rows = []
    for at in range(0, len(part), _ROW_BYTES):
        row = part[at : at + _ROW_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        padded = row.hex(" ").ljust(3 * min(_ROW_BYTES, len(part)) - 1)
        rows.append(f"{at:08x}  {padded}  {letters}")
    return ShownBytes("hex", "\n".join(rows), len(data), len(part) < len(data))
