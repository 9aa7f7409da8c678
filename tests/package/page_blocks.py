"""The blocks of commands of docs/start and docs/operate, as they are written.

Place: under walk.py, which runs them, and test_pages_walked.py, which checks that none is forgotten.
Invariant: a block is found by its form: indented or between fences. It is one of commands if its language says so, or
if one of its lines begins as a command does; so a new block cannot be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.package.distribution import ROOT

FOLDERS = (ROOT / "docs" / "start", ROOT / "docs" / "operate")
LANGUAGES = frozenset({"sh", "bash", "sql", "python"})
_PROGRAMS = (
    "headrace", "headrace-spark-compaction", "headrace-spark-tables", "pip", "make", "psql", "pg_basebackup", "kubectl",
    "helm", "docker", "python", "export", "echo", "git", "openssl", "cat", "rm", "set",
)  # fmt: skip
_COMMAND = re.compile(
    rf"(?:\$ )?(?:(?:[A-Z_]+=\S*|…) )*(?:{'|'.join(map(re.escape, _PROGRAMS))}|[a-z]+=\$\(.*\)$)(?: |$)"
)
_CONTINUED = re.compile(r" *\\\n *")


@dataclass(frozen=True, slots=True)
class Block:
    """`line`: number of its first line in the page, from 1. `language`: as the fence names it; "" for indented ones."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.parent.name}/{self.page.name}:{self.line}"

    @property
    def is_commands(self) -> bool:
        """Whether a reader is to run it, not only to read it or to put it into a file."""
        if self.language in LANGUAGES:
            return True
        return not self.language and any(_COMMAND.match(line) for line in self.text.splitlines())

    @property
    def units(self) -> list[str]:
        """What is run at once: the whole of a script; else each line, with those that it continues on."""
        if self.language:
            return [self.text]
        lines = _CONTINUED.sub(" ", self.text).splitlines()
        return [line.removeprefix("$ ") for line in lines if _COMMAND.match(line)]


def pages() -> list[Path]:
    """The pages, in their order."""
    return [page for folder in FOLDERS for page in sorted(folder.glob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """Every block of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        first = at + 1
        if lines[at].startswith("```"):
            end = next(number for number in range(first, len(lines)) if lines[number].startswith("```"))
            yield Block(page, first + 1, lines[at].removeprefix("```").strip(), "\n".join(lines[first:end]))
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "\n".join(line.removeprefix("    ") for line in lines[at:end]).rstrip()
            yield Block(page, first, "", text)
            at = end
        else:
            at += 1


def command_blocks(page: Path) -> list[Block]:
    """The blocks of a page that a reader is to run."""
    return [block for block in blocks_of(page) if block.is_commands]
