"""The commands of docs/start and docs/operate: each is run in `make test-all`, or has a reason why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.package.distribution import ROOT, WHEEL, beside_this_environment, build
from tests.package.page_blocks import Block, blocks_of, command_blocks, pages
from tests.package.walk import NOT_RUN, walk, why_not

RUN_MIN = 25


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
    assert Block(page, 8, "", " a drawing") in list(blocks_of(page))


def test_every_reason_is_of_a_command_and_names_what_exists() -> None:
    by_name = {page.name: page for page in pages()}
    for name, reasons in NOT_RUN.items():
        units = _units(by_name[name])
        for begin, reason in reasons.items():
            assert any(unit.startswith(begin) for unit in units), f"{name}: {begin}"
            for path in re.findall(r"\b(?:tests|load)/[\w/.]+", reason):
                assert (ROOT / path.rstrip(".")).exists(), f"{name}: {path}"
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
