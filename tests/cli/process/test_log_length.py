"""A log line has a bounded length, for any text of a client."""

from __future__ import annotations

import io
import logging

import pytest

from headrace.cli.process.logs import AUDIT, VALUE_CHARACTERS, LengthFilter
from headrace.storage.client_text import SHOWN_CHARACTERS, shown
from headrace.storage.errors import InvalidError

pytestmark = pytest.mark.requirement("X7")


def lines(*arguments: object, message: str = "group loaded: group=%s epoch=%d", name: str = "headrace.test") -> str:
    text, logger = io.StringIO(), logging.Logger(name)
    handler = logging.StreamHandler(text)
    handler.addFilter(LengthFilter())
    logger.addHandler(handler)
    logger.info(message, *arguments)
    return text.getvalue().rstrip("\n")


def test_values_are_cut_and_say_how_long_they_were() -> None:
    assert lines("g" * 200_000, 7) == f"group loaded: group={'g' * VALUE_CHARACTERS}… (200000 characters) epoch=7"
    assert lines("g", 7) == "group loaded: group=g epoch=7"
    assert lines(InvalidError("x" * 9_000), 7).endswith("… (9000 characters) epoch=7")
    assert lines("g" * 20_000, 7, message="group %r of %d").startswith("group 'ggg")
    assert len(lines(message="y" * 50_000)) < VALUE_CHARACTERS + 100
    assert len(lines("z" * 50_000, message="%s", name=AUDIT)) == 50_000, "it is JSON, and limits its own values"


def test_text_of_a_client_is_shortened() -> None:
    assert shown("app") == "app"
    assert shown(None) is None
    assert shown("c" * 300) == "c" * SHOWN_CHARACTERS + "… (300 characters)"
