"""Text from a client in a log line, a message, the audit log, a terminal or a page: shortened, and without controls.

Place: used where what a client sent is written down: client ids, names, reasons. Log lines (cli/process/logs.py),
everything that commands print (cli/output.py) and the console's pages pass through `visible`.
Invariant: a client does not choose the length of a line. A client id may have 32,767 bytes, other names the size of a
request. Characters that a terminal obeys, that are not seen, or that change the order of others are shown by their
numbers, so that a name can neither act nor look like another one.
"""

from __future__ import annotations

import json
import unicodedata
from typing import overload

SHOWN_CHARACTERS = 256
_LINES = "\n\t"
_SEPARATORS = ("Zl", "Zp")


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


def visible(text: str) -> str:
    """Return the text with invisible characters by their numbers; line ends and tabs stay."""
    return _without_controls(text, _LINES)


def one_line(text: str) -> str:
    """Return the same, and line ends and tabs by their numbers, too: for a name within a line or a table."""
    return _without_controls(text, "")


def is_control(character: str) -> bool:
    """Return whether the character acts on a terminal, is not seen, or changes the order of others."""
    category = unicodedata.category(character)
    return category.startswith("C") or category in _SEPARATORS


def _without_controls(text: str, but: str) -> str:
    if text.isprintable():  # no character of these categories, and no space but " "
        return text
    return "".join(
        f"\\u{{{ord(character):04x}}}" if character not in but and is_control(character) else character
        for character in text
    )


def json_text(document: str) -> str:
    """Return the same JSON document with such characters as JSON escapes them: all of them are within texts."""
    if document.isprintable():
        return document
    return "".join(json.dumps(each)[1:-1] if is_control(each) else each for each in document)
