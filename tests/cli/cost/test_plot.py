"""The picture of `headrace cost --plot`: well-formed, in proportion, and the page shows the one that is written now."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from headrace.cli.cost.command import BOTTOM, LABEL_HEIGHT, LEFT, RIGHT, TOP, LogAxis, picture
from headrace.cli.cost.model import Workload, bills, measured, prices
from headrace.cli.main import main

PAGE = Path(__file__).parents[3] / "docs" / "understand" / "COST.md"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_page_shows_what_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = re.search(r"`headrace (cost [^`]* --plot) (\S+)`", PAGE.read_text(encoding="utf-8"))
    assert command is not None
    assert main([*command[1].split(), str(tmp_path / "plot.svg")]) == 0
    assert "MANAGED" in capsys.readouterr().out
    written = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert written == PAGE.with_name(command[2]).read_text(encoding="utf-8"), "write docs/understand/cost.svg again"


@pytest.mark.parametrize("rate", [0.01, 0.7, 3, 1_000])
def test_every_line_is_within_the_chart_and_ends_at_the_models_cost(rate: float) -> None:
    workload = Workload(write_mib_s=rate, fanout=2)
    drawn = ET.fromstring(picture(workload, measured(), prices()))
    lines = [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in drawn.iter(f"{SVG}polyline")
    ]
    found = bills(workload, measured(), prices())
    assert len(lines) == len(found)
    for points in lines:
        assert all(LEFT - 0.1 <= x <= RIGHT + 0.1 and TOP - 0.1 <= y <= BOTTOM + 0.1 for x, y in points)
    heights = [float(text.attrib["y"]) for text in drawn.iter(f"{SVG}text") if "style" in text.attrib]
    assert all(abs(a - b) >= LABEL_HEIGHT - 0.1 for a in heights for b in heights if a != b)
    assert len(set(heights)) == len(found)


def test_an_axis_is_logarithmic() -> None:
    axis = LogAxis((1, 100), (0, 200))
    assert [axis.place(value) for value in (1, 10, 100)] == [0, 100, 200]
    assert axis.decades() == [1, 10, 100]


def test_a_plot_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--write-mib-s", "1", "--plot", str(tmp_path / "no" / "plot.svg")]) == 1
    assert "plot.svg" in capsys.readouterr().err
