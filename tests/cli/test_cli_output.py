"""One place writes: the sources of the command line have no other, and it writes no control characters of others."""

from __future__ import annotations

import ast
import io
import json
import logging
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from headrace.cli.console.parts import Pages
from headrace.cli.console.samples import Sample
from headrace.cli.output import write, write_error
from headrace.cli.plain_console import PlainConsole
from headrace.cli.process.logs import OneLineFormatter
from headrace.cli.top import Screen, drawn
from headrace.storage.client_text import is_control, json_text, one_line, visible

CLI = Path(__file__).resolve().parents[2] / "cli"
WRITERS = {
    "output.py": "the one place",
    "plain_console.py": "the other, for what Rich draws",
    "progress_bar.py": "numbers, and fixed words",
    "command_line.py": "help texts",
    "records.py": "bytes of records; to a terminal without control characters",
    "bench/driver_input.py": "a protocol between processes",
    "bench/consume_driver.py": "the same",
    "bench/produce_driver.py": "the same",
    "bench/orders.py": "the same",
}
BAD = "\x1b]0;owned\x07\x9b2J\u202e\u2028[/x]"
SHOWN = "\\u{001b}]0;owned\\u{0007}\\u{009b}2J\\u{202e}\\u{2028}[/x]"


def _writes(tree: ast.AST) -> list[int]:
    """Lines that write without it: `print`, streams of sys, and consoles of Rich."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in ("print", "Console"):
            found.append(node.lineno)
        elif isinstance(node, ast.Attribute) and node.attr in ("write", "buffer"):
            of = node.value
            if isinstance(of, ast.Attribute) and of.attr in ("stdout", "stderr", "buffer"):
                found.append(node.lineno)
    return found


def test_nothing_else_writes() -> None:
    others = {
        str(path.relative_to(CLI)): lines
        for path in CLI.rglob("*.py")
        if (lines := _writes(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert others.keys() - WRITERS.keys() == set(), others


def test_lines_of_others_do_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write(f"group {BAD}\nnext")
    write_error(BAD)
    output = capsys.readouterr()
    assert output.out == f"group {SHOWN}\nnext\n"
    assert output.err == f"{SHOWN}\n"
    assert visible("straße 日本 🙂\n\t") == "straße 日本 🙂\n\t"
    assert one_line("a\nb\tc") == "a\\u{000a}b\\u{0009}c"


@pytest.mark.parametrize("console", [PlainConsole, Console])
def test_a_screen_shows_names_as_text(console: type[Console]) -> None:
    """Another console may draw it."""
    names = ("[/x]", "[link=https://a.example]billing[/link]", BAD)
    sample = Sample(0, 0.0, {("t", 0): 10}, {name: {("t", 0): 1} for name in names}, {})
    out = io.StringIO()
    console(file=out, force_terminal=True, width=200).print(drawn(Screen(servers=BAD, sample=sample)))
    for text in ("[/x]", "[link=https://a.example]billing[/link]", SHOWN):
        assert text in out.getvalue()
    assert not any(acting in out.getvalue() for acting in ("\x1b]", "\x9b", "\u202e"))


def test_a_table_that_was_given_plain_strings_is_safe_too() -> None:
    out = io.StringIO()
    table = Table()
    table.add_row(f"[link=https://a.example]{BAD}")
    PlainConsole(file=out, force_terminal=True, width=200).print(table)
    assert "[link=https://a.example]\\u{001b}]0;owned" in out.getvalue()
    assert not any(acting in out.getvalue() for acting in ("\x1b]", "\x9b", "\u202e"))


def test_logs_json_and_pages() -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "group refused: group=%s", (BAD,), None)
    line = OneLineFormatter().format(record)
    assert not any(map(is_control, line))
    assert "\\x1b]0;owned" in line
    document = json_text(json.dumps({"key": BAD}, ensure_ascii=False))
    assert not any(map(is_control, document))
    assert json.loads(document) == {"key": BAD}
    page = bytes(
        Pages(servers="s", allows_changes=False).render("error", 404, title=BAD, error=BAD, retries=False).body
    ).decode()
    assert SHOWN in page
    assert not any(is_control(each) for each in page if each not in "\n\t")


def test_what_a_form_sends_back_is_exact() -> None:
    """A name in a hidden field would else name something else."""
    templates = CLI / "console" / "templates"
    for path in templates.glob("*.html"):
        for part in path.read_text(encoding="utf-8").split('value="{{')[1:]:
            assert part.partition("}}")[0].rstrip().endswith("| exact"), path.name
