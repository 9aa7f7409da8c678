"""What tests/data/page_commands.toml says of the pages' commands: which are not run and why, and what is none.

Place: between page_blocks.py and walk.py; test_pages_walked.py checks it in `make test`.
Invariant: each line of a block is a command that walk.py runs, a command with a reason why not, or something else by
name. `python -m tests.package.walk --list` prints what is missing here, and `--prune` removes what no page has any
more.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.package.distribution import ROOT
from tests.package.page_blocks import Block, blocks_of, pages

LISTS = ROOT / "tests" / "data" / "page_commands.toml"
NOT_RUN, NO_COMMAND = "not_run", "no_command"


def of_page(page: Path) -> dict[str, Any]:
    """Return its table: `given`, `dev`, `not_run` and `no_command`, each left out if it is empty."""
    found: dict[str, Any] = _tables().get(page.name, {})
    return found


def why_not(page: Path, unit: str) -> str:
    """Return why a unit is not run; empty if it is. The longest beginning counts, an empty reason runs it."""
    return _longest(of_page(page).get(NOT_RUN, {}), unit)


def unknown() -> Iterator[str]:
    """Each line of a block that is neither a command nor named in `no_command`, with its place."""
    for page in pages():
        named = of_page(page).get(NO_COMMAND, {})
        for block in blocks_of(page):
            for line in block.others:
                if not _longest(named, line):
                    yield f"{block}: {line}"


def stale(lists: Path = LISTS) -> list[tuple[str, str, str]]:
    """Beginnings that no page has any more: (page, list, beginning)."""
    found = []
    by_name = {page.name: list(blocks_of(page)) for page in pages()}
    for name, table in _tables(lists).items():
        blocks = by_name.get(name, [])
        for which, texts in ((NOT_RUN, _units), (NO_COMMAND, _others)):
            lines = [line for block in blocks for line in texts(block)]
            found += [
                (name, which, begin)
                for begin in table.get(which, {})
                if not any(line.startswith(begin) for line in lines)
            ]
    return found


def prune(lists: Path = LISTS) -> None:
    """Remove what is stale from the file: one line each."""
    gone = set(stale(lists))
    kept, page, which = [], "", ""
    for line in lists.read_text(encoding="utf-8").splitlines():
        if section := re.match(r'\["(.*)"\](?!.)|\["(.*)"\.(\w+)\]', line):
            page, which = section[2] or "", section[3] or ""
        elif which and " = " in line and any((page, which, begin) in gone for begin in tomllib.loads(line)):
            continue
        kept.append(line)
    lists.write_text("\n".join(kept) + "\n", encoding="utf-8")


def _tables(lists: Path = LISTS) -> dict[str, Any]:
    return tomllib.loads(lists.read_text(encoding="utf-8"))


def _units(block: Block) -> list[str]:
    return block.units if block.is_commands else []


def _others(block: Block) -> list[str]:
    return block.others


def _longest(reasons: dict[str, str], text: str) -> str:
    begins = [begin for begin in reasons if text.startswith(begin)]
    return reasons[max(begins, key=len)] if begins else ""
