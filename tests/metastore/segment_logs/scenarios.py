"""The five scenarios of KAFKA-20033, parsed from its own text (tests/data/lifecycle_scenarios.txt).

A table's cells are paragraphs of the text, row by row; a row starts with its time (T1, T5+24Hour).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TEXT = Path(__file__).parents[2] / "data" / "lifecycle_scenarios.txt"
_TIME = re.compile(r"T\d+(\+24Hour)?")
_EXPECTED = re.compile(r"(Audit topic|Compacted topic|Cache result): *(.*)")
_STATE = re.compile(r"(abc123:\S+) *→ *(FINISHED|null) *\(([^)]*)\)|(abc123:\S+) *= *(FINISHED)")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, as it is written."""

    time: str
    event: str
    key: str
    value: str

    @property
    def is_message(self) -> bool:
        """Whether it writes a record."""
        return self.key.startswith("abc123:")

    def fields(self) -> dict[str, str]:
        """apiKey, uuid, state, epoch: those that the row names."""
        return dict(re.findall(r"(apiKey|uuid|state|epoch)=([\w-]+)", self.value))


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. `initial` and `compacted`: (key, uuid or "") of each FINISHED key that the text lists."""

    title: str
    rows: list[Row]
    initial: list[tuple[str, str]]
    compacted: list[tuple[str, str]]
    tombstones: list[str]
    audit: str
    compacted_text: str
    cache: str

    @property
    def messages(self) -> list[Row]:
        """The rows that write a record."""
        return [row for row in self.rows if row.is_message]


@cache
def scenarios() -> dict[int, Scenario]:
    """All of them, by number."""
    parts = re.split(r"^Scenario (\d): ", TEXT.read_text(), flags=re.MULTILINE)
    return {int(number): _scenario(body) for number, body in zip(parts[1::2], parts[2::2], strict=True)}


def _scenario(body: str) -> Scenario:
    paragraphs = [" ".join(text.split()) for text in re.split(r"\n\s*\n", body) if text.strip()]
    cells = [text for text in paragraphs if text]
    table = cells.index("Value") + 1
    end = next(n for n in range(table, len(cells)) if not _row_at(cells, n, table))
    rows = [Row(*cells[n : n + 4]) for n in range(table, end, 4)]
    before, after = " ".join(cells[:table]), "\n".join(cells[end:])
    expected = dict(_EXPECTED.findall(after))
    states = [match.groups() for match in _STATE.finditer(after)]
    return Scenario(
        title=cells[0],
        rows=rows,
        initial=[(m[0], _uuid(m[2])) for m in (x.groups() for x in _STATE.finditer(before)) if m[1] == "FINISHED"],
        compacted=[(m[0] or m[3], _uuid(m[2] or "")) for m in states if "FINISHED" in (m[1], m[4])],
        tombstones=[m[0] for m in states if m[1] == "null"],
        audit=expected.get("Audit topic", ""),
        compacted_text=expected.get("Compacted topic", ""),
        cache=expected.get("Cache result", ""),
    )


def _row_at(cells: list[str], number: int, table: int) -> bool:
    """Return whether this cell belongs to a row of the table."""
    first = number - (number - table) % 4
    return _TIME.fullmatch(cells[first]) is not None


def _uuid(text: str) -> str:
    found = re.search(r"UUID-[A-Z]", text)
    return found.group() if found else ""
