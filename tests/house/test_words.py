"""The check for hard words finds them where people read, and today's documents and code pass it."""

from __future__ import annotations

import sys

import pytest

from tests.house import words


def _found(path: str, text: str) -> list[tuple[int, str]]:
    return [(one.line, one.word) for one in words.occurrences(path, text)]


@pytest.mark.slow
def test_the_documents_and_the_code_are_within_their_allowance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `make test`, this is a part of `make check`."""
    monkeypatch.setattr(sys, "argv", ["words"])
    assert words.main() == 0, capsys.readouterr().out


def test_comments_strings_and_names_of_tests_are_read_but_identifiers_are_not() -> None:
    code = '"""Written anew."""\nstands = f"{stands} is nobody"  # whoever\ndef test_it_lives() -> None: ...\n'
    assert _found("a.py", code) == [(1, "anew"), (2, "nobody"), (2, "whoever"), (3, "lives")]
    assert not _found("a.py", 'user = "nobody"\n')


def test_a_phrase_over_two_lines_is_found_at_its_first_line() -> None:
    assert _found("a.sql", "-- a row of its\n-- own") == [(1, "of its own")]
    assert _found("a.md", "kept for\never") == [(1, "for ever")]


def test_parts_of_words_do_not_count() -> None:
    assert not _found(
        "a.md", "standard delivery, earliest, understand, believes, short-lived, 0015-what-lives-in-a-file.md"
    )


def test_the_innermost_folder_counts() -> None:
    assert words.folder_of("agent/fetch/files/cache.py", ["agent", "agent/fetch"]) == "agent/fetch"
    assert words.folder_of("agents.py", ["agent"]) == ""


def test_an_allowance_is_lowered_and_never_raised() -> None:
    one = next(words.occurrences("a.md", "anew"))
    page = '[allowed]\n# why\n"a" = 3\n"b" = 0\n'
    assert words._lowered(page, {"a": [one], "b": [one]}) == '[allowed]\n# why\n"a" = 1\n"b" = 0\n'
