"""The blocks of commands of docs/start and docs/operate, as they are written.

Place: under page_lists.py, which says what is not run, and walk.py, which runs the rest.
Invariant: a block is found by its form: indented or between fences, also inside of a list. It is one of commands if its
language says so, or if one of its lines begins as a command does. A line of a block without a language that is neither
a command nor a drawing is one of its `others`, so a new command cannot be left out.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.package.distribution import ROOT

FOLDERS = (ROOT / "docs" / "start", ROOT / "docs" / "operate")
LANGUAGES = frozenset({"sh", "bash", "sql", "python"})
_PROGRAMS = (
    "headrace", "headrace-spark-compaction", "headrace-spark-tables", "pip", "make", "psql", "pg_basebackup", "kubectl",
    "helm", "docker", "python", "python3", "export", "echo", "git", "openssl", "cat", "rm", "set", "cp", "touch",
    "curl", "aws", "install", "useradd", "systemctl", "spark-submit", ".venv/bin/pytest",
)  # fmt: skip
_COMMAND = re.compile(
    rf"(?:\$ )?(?:(?:[A-Z_]+=\S*|…) )*(?:{'|'.join(map(re.escape, _PROGRAMS))}|[a-z]+=(?:\$\(.*\)|~\S*)$)(?: |$)"
)
_CONTINUED = re.compile(r" *\\\n *")
_FENCE = re.compile(r" *```(\w*)$")
_INPUT = re.compile(r"<<'?(\w+)'?")
"""The file that a command gets is written behind it, up to this word."""
_DRAWN = re.compile("[\u2500-\u25ff]")


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
        return self.language in LANGUAGES or bool(not self.language and self.units)

    @property
    def units(self) -> list[str]:
        """What is run at once: the whole of a script; else each line, with those that it continues on."""
        if self.language:
            return [self.text]
        return [line.removeprefix("$ ") for line in self._lines() if _COMMAND.match(line)]

    @property
    def others(self) -> list[str]:
        """The lines of a block without a language that are no commands; of one without any command, the first."""
        if self.language or _DRAWN.search(self.text):
            return []
        found = [line for line in self._lines() if not _COMMAND.match(line) and line.strip()]
        return [line for line in found if not line.startswith("#")] if self.units else found[:1]

    def _lines(self) -> Iterator[str]:
        lines = iter(_CONTINUED.sub(" ", self.text).splitlines())
        for line in lines:
            if (given := _INPUT.search(line)) and _COMMAND.match(line):
                for further in lines:
                    line += f"\n{further}"
                    if further == given[1]:
                        break
            yield line


def pages() -> list[Path]:
    """The pages, in their order."""
    return [page for folder in FOLDERS for page in sorted(folder.glob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """Every block of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        first = at + 1
        if fence := _FENCE.match(lines[at]):
            end = next(number for number in range(first, len(lines)) if lines[number].strip() == "```")
            yield Block(page, first + 1, fence[1], textwrap.dedent("\n".join(lines[first:end])))
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block(page, first, "", textwrap.dedent("\n".join(lines[at:end])).rstrip())
            at = end
        else:
            at += 1


def command_blocks(page: Path) -> list[Block]:
    """The blocks of a page that a reader is to run."""
    return [block for block in blocks_of(page) if block.is_commands]
