"""The check of docstrings finds fragments, cut sentences and mannered turns, and today's code and documents pass it."""

from __future__ import annotations

import sys

import pytest

from tests.house import docstrings


def _fragments(code: str) -> list[str]:
    return [one.text for one in docstrings.docstrings("a.py", code) if one.fragment]


@pytest.mark.slow
def test_code_and_documents_are_below_all_alarms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `make test`, this is a part of `make check`."""
    monkeypatch.setattr(sys, "argv", ["docstrings"])
    assert docstrings.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["Of a group.", "None if it was lost.", "What it needs.", "By node id.", "The handler."]
)
def test_a_fragment_is_found(text: str) -> None:
    assert _fragments(f'def f():\n    """{text}"""\n') == [text]


def test_noun_phrases_verbs_and_names_of_tests_are_no_fragments() -> None:
    code = (
        '"""What a commit costs."""\nX = 1\n"""Number of rows."""\n'
        'def f():\n    """Return what it needs."""\ndef test_f():\n    """Below the limit."""\n'
    )
    assert not _fragments(code)
    assert _fragments('X = 1\n"""Of one batch."""\n') == ["Of one batch."]


def test_a_sentence_that_an_empty_line_cuts_is_found() -> None:
    def is_cut(text: str, before: str = "def f():\n    ") -> bool:
        (found,) = docstrings.docstrings("a.py", f'{before}"""{text}\n    """\n')
        return found.is_cut

    assert is_cut("Return offsets; those without one are left out, unless one is\n\n    pending.")
    assert not is_cut("Return offsets.\n\n    pending: of a transaction.")
    assert not is_cut("Copy a topic:\n\n    from source to sink.")
    assert not is_cut("Copy a topic: copy.py FROM TO\n\n    pip install it first", before="")
    assert not is_cut("Return a frame\n\n    frame.write writes it.")


def test_turns_are_found() -> None:
    assert [one.word for one in docstrings.turns("a.md", "The agent goes on, and it is harmless, in vain.")] == [
        "goes on",
        "in vain",
    ]
