"""The commands of docs/start and docs/operate: each is run in `make test-all`, or has a reason why not.

A command that a page gets is run there without a word here. What is no command, and what cannot run, is named in
tests/data/page_commands.toml: else these tests fail.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.package.distribution import ROOT, WHEEL, beside_this_environment, build
from tests.package.page_blocks import Block, blocks_of, command_blocks, pages
from tests.package.page_lists import LISTS, NOT_RUN, of_page, prune, stale, unknown, why_not
from tests.package.walk import walk

RUN_MIN = 25
HOW = f"correct {LISTS.relative_to(ROOT)}: python -m tests.package.walk --list"


def _units(page: Path) -> list[str]:
    return [unit for block in command_blocks(page) for unit in block.units]


def test_blocks_are_found_by_their_form(tmp_path: Path) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text(
        "Text\n\n    headrace topics list \\\n        --json\n    orders\n\n```\n a drawing\n```\n"
        "```sh\ncd x\nheadrace version\n```\n\n```\n$ headrace top\nits output\n```\n- a list\n    that is continued\n"
    )
    assert [(block.line, block.language, block.units) for block in command_blocks(page)] == [
        (3, "", ["headrace topics list --json"]),
        (11, "sh", ["cd x\nheadrace version"]),
        (16, "", ["headrace top"]),
    ]
    assert Block(page, 8, "", "a drawing") in list(blocks_of(page))


@pytest.mark.parametrize(
    ("text", "commands", "others"),
    [
        ("    headrace topics list \\\n        --json\n", ["headrace topics list --json"], []),
        ("1. First\n\n       headrace topics list\n", ["headrace topics list"], []),
        ("1. First\n\n   ```sh\n   cd x\n   frob\n   ```\n", ["cd x\nfrob"], []),
        ("```\nheadrace top\nfrob --all\n# a remark\n```\n", ["headrace top"], ["frob --all"]),
        ("```\nfrob --all\nand more\n```\n", [], ["frob --all"]),
        ("```\na ──► b\n```\n", [], []),
        ("```yaml\nheadrace: 1\n```\n", [], []),
        ("```\ncat > x <<'END'\nfrob\nEND\nrm x\n```\n", ["cat > x <<'END'\nfrob\nEND", "rm x"], []),
    ],
)
def test_each_line_is_a_command_or_something_else(
    text: str, commands: list[str], others: list[str], tmp_path: Path
) -> None:
    """A command of a program that is not in a table here counts as one, too, so the next test asks for it."""
    page = tmp_path / "PAGE.md"
    page.write_text(text)
    assert [unit for block in command_blocks(page) for unit in block.units] == commands
    assert [line for block in blocks_of(page) for line in block.others] == others


def test_no_line_of_a_block_is_left_out() -> None:
    assert not list(unknown()), HOW


def test_what_no_page_has_any_more_is_removed_from_the_lists(tmp_path: Path) -> None:
    text = LISTS.read_text(encoding="utf-8")
    copy = tmp_path / LISTS.name
    further = '\n["GONE.md".not_run]\n"headrace x" = "a reason"\n\n["INSTALL.md".no_command]\n"nowhere" = "output"\n'
    copy.write_text(text + further, encoding="utf-8")
    assert stale(copy) == [("INSTALL.md", "no_command", "nowhere"), ("GONE.md", "not_run", "headrace x")]
    prune(copy)
    assert stale(copy) == []
    assert text in copy.read_text(encoding="utf-8")


def test_every_reason_is_of_a_command_and_names_what_exists() -> None:
    assert not stale(), HOW
    for page in pages():
        for begin, reason in of_page(page).get(NOT_RUN, {}).items():
            for path in re.findall(r"\b(?:tests|load)/[\w/.]+", reason):
                assert (ROOT / path.rstrip(".")).exists(), f"{page.name} {begin}: {path}"
    run = [unit for page in pages() for unit in _units(page) if not why_not(page, unit)]
    assert len(run) >= RUN_MIN


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_commands_of_the_pages_work_as_they_are_written(tmp_path: Path) -> None:
    environment = beside_this_environment(build(WHEEL, tmp_path), tmp_path / "venv")
    walked = []
    for page in pages():
        (folder := tmp_path / page.stem).mkdir()
        walked.append(walk(page, environment, folder))
        print(walked[-1])
    assert [failure for one in walked for failure in one.failed] == []
    assert sum(len(one.run) for one in walked) >= RUN_MIN
