"""The command lines of README, the START pages and every `--help`, as they are written.

Place: under test_instructions.py.
Invariant: a line is found by its form (indented, with the word headrace), so a new example cannot be left out. What a
reader has to replace (an address, "…") is replaced by a place that exists, nothing else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.cli.commands import COMMANDS
from tests.package.distribution import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "start").glob("*.md")))
_COMMAND = re.compile(r"(?:^|[|(;\"] *|\$\()headrace ")
_REMARK = re.compile(r"(?:\s+#\s.*|\s{3,}(?!\s)[a-z].*|,? ?…(?: .*)?|\s\.\.\..*)$")
"""What follows a line: a comment, a remark in the next column, or an ellipsis for more flags."""
PLACES = {
    "$(headrace storage random-uuid)": "4L6g3nShT-eMCtK--X86sw",
    "-url …": "-url postgresql://place",
    "://…": "://place",
    "[--audit]": "--audit",
}
"""What a shell or a reader replaces."""


@dataclass(frozen=True)
class Example:
    """A command line, and the page or command that has it."""

    where: str
    line: str

    def __str__(self) -> str:
        return f"{self.where}: {self.line}"


def of_pages() -> Iterator[Example]:
    """Lines of the pages, in their order."""
    for page in PAGES:
        for line in _lines(page.read_text(encoding="utf-8"), "    "):
            yield Example(page.name, line)


def of_helps() -> Iterator[Example]:
    """Lines of the descriptions."""
    for command in COMMANDS:
        for line in _lines(command.load().DESCRIPTION, "  "):
            yield Example(f"headrace {command.name} --help", line)


def _lines(text: str, indent: str) -> Iterator[str]:
    joined = re.sub(r" *\\\n *", " ", text)
    for line in joined.splitlines():
        if line.startswith(indent) and not line.startswith(indent + " ") and _COMMAND.search(line.strip()):
            yield line.strip()


def words_of(example: Example) -> list[str]:
    """The words after the last `headrace` of a pipe, as a shell gives them to it."""
    line = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example.line)
    for written, place in PLACES.items():
        line = line.replace(written, place)
    command = line.rpartition("| ")[2]
    return shlex.split(_REMARK.sub("", command).partition(" > ")[0])[1:]


def with_places(line: str, places: Mapping[str, str]) -> str:
    """The line with each address replaced by one that exists, and without what only people read."""
    for written, place in places.items():
        line = line.replace(written, place)
    return _REMARK.sub("", line)
