"""Figures that pages quote from a measured run, and docs/results/figures.toml, the one table of them.

Place: used by tests/house/test_figures.py. A *figure* is a number with a unit of UNITS: a time, CPU or
throughput. It is *quoted* if it is on a line that links to a page of docs/results, or in a table below
such a line. On a line with several links, the run is that of the figure's sentence. The first cell of a
table's row names what was measured: numbers in it are not figures.

Invariant (the test): each quoted figure is in the table below its run, and each figure of the table is
in the text of its run and on a page. So two pages cannot quote different figures of one measurement,
and no page can quote what was not measured. (A figure that the run does not have as it is, a ratio or
another unit, has a list: the figure, then the numbers of the run that it is computed from.)
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "results" / "figures.toml"
UNITS = ("ms/s", "ms", "µs", "s/GB", "CPU s/GB", "MB/s", "commits/s", "s", "times")
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_QUOTED = re.compile(
    rf"(?<![\w.-])({_NUMBER}(?:(?:,? and |,? to |, | / | \+ |,? or ){_NUMBER})*) ?"
    rf"({'|'.join(map(re.escape, UNITS))})(?![\w/])"
)
_LINK = re.compile(r"\]\((?:\.\./)*(?:docs/)?(?:results/)(\d{4}-\d\d-\d\d-[\w-]+)\.md(?:#[^)]*)?\)")
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"[.:;] (?=\W*[A-Z])")


@dataclass(frozen=True, slots=True)
class Quoted:
    page: str
    line: int
    run: str
    figure: str


def table() -> dict[str, dict[str, Any]]:
    """Return what figures.toml says of each run: date, commit, command, figures by name."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def numbers(text: str) -> list[tuple[int, str]]:
    """Return the figures of a text with their places: "4, 9.21 ms" is two, each with its unit."""
    return [
        (found.start(), f"{number} {found[2]}") for found in _QUOTED.finditer(text) for number in _numbers(found[1])
    ]


def _numbers(text: str) -> list[str]:
    return re.findall(_NUMBER, text)


def quoted(page: str, text: str) -> Iterator[Quoted]:
    """Find the figures that a page quotes from runs."""
    run = ""
    for number, line in enumerate(text.splitlines(), start=1):
        plain = _CODE.sub(lambda code: " " * len(code[0]), line)
        links = [(link.start(), link[1]) for link in _LINK.finditer(line)]
        in_table = line.startswith("|")
        if links and not in_table:
            run = links[-1][1]
        elif line.startswith(("#", "```")) or (line.strip() and not in_table and not links):
            run = ""
        if in_table and line.count("|") > 2:
            first = line.index("|", 1)
            plain = " " * first + plain[first:]
        for place, figure in numbers(plain):
            if links:
                yield Quoted(page, number, _run_of(place, links, line), figure)
            elif in_table and run:
                yield Quoted(page, number, run, figure)


def _run_of(place: int, links: list[tuple[int, str]], line: str) -> str:
    """Choose the run of a figure: a link of its sentence if there is one, the next link before an earlier one."""
    begin = max((end.end() for end in _END.finditer(line, 0, place)), default=0)
    found = _END.search(line, place)
    end = found.start() if found else len(line)
    near = [link for link in links if begin <= link[0] < end] or links
    after = [name for start, name in near if start > place]
    return after[0] if after else near[-1][1]


def pages() -> dict[str, str]:
    """Return README, CONTRIBUTING and the pages of docs/ by path, but for runs and decisions, which are dated."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    dated = {"results", "decisions"}
    return {
        str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in found if page.parent.name not in dated
    }
