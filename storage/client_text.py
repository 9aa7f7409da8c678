"""Text from a client in a log line, a message or the audit log: shortened.

Place: used where what a client sent is written down: client ids, names, reasons.
Invariant: a client does not choose the length of a line. A client id may have 32,767 bytes, other names the size of a
request.
"""

from __future__ import annotations

from typing import overload

SHOWN_CHARACTERS = 256


@overload
def shown(text: str, characters: int = ...) -> str: ...
@overload
def shown(text: None, characters: int = ...) -> None: ...
@overload
def shown(text: str | None, characters: int = ...) -> str | None: ...
def shown(text: str | None, characters: int = SHOWN_CHARACTERS) -> str | None:
    """The text, or its beginning and how many characters it has. None stays None."""
    if text is None or len(text) <= characters:
        return text
    return f"{text[:characters]}… ({len(text)} characters)"
