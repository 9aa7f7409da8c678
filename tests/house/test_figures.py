"""What pages quote from measured runs is in docs/results/figures.toml, and what is there was measured."""

from __future__ import annotations

import re

import pytest

from tests.house.figures import ROOT, Quoted, pages, quoted, table

RESULTS = ROOT / "docs" / "results"


def _listed(run: str) -> dict[str, list[str]]:
    rows: dict[str, str | list[str]] = table()[run]["figures"]
    return {name: [row] if isinstance(row, str) else row for name, row in rows.items()}


def _measured(figure: str, text: str) -> bool:
    """Return whether the run's page has this number, perhaps with more decimals."""
    number = figure.split(" ")[0]
    decimals = len(number.partition(".")[2])
    found = re.findall(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?", text)
    return number in found or any(
        f"{float(one.replace(',', '')):.{decimals}f}" == number
        for one in found
        if len(one.partition(".")[2]) > decimals
    )


def test_each_figure_that_a_page_quotes_is_in_the_table_of_its_run() -> None:
    listed = {run: {row[0] for row in _listed(run).values()} for run in table()}
    found = [one for page, text in pages().items() for one in quoted(page, text)]
    assert len(found) > 150
    assert {one.page for one in found} >= {"docs/BENCHMARKS.md", "docs/COMPARISON.md", "docs/start/PRODUCERS.md"}
    unlisted = [one for one in found if one.figure not in listed.get(one.run, set())]
    assert not unlisted, "not in docs/results/figures.toml, or not of the run that the page links"


@pytest.mark.parametrize("run", list(table()))
def test_each_figure_of_the_table_was_measured_and_is_quoted(run: str) -> None:
    assert table()[run].keys() == {"date", "commit", "command", "figures"}
    text = (RESULTS / f"{run}.md").read_text(encoding="utf-8")
    shown = {one.figure for page, content in pages().items() for one in quoted(page, content) if one.run == run}
    for name, (figure, *computed_from) in _listed(run).items():
        for number in computed_from or [figure]:
            assert _measured(number, text), f"{name}: {number} is not in the run"
        assert figure in shown, f"{name}: no page quotes {figure}"


def test_a_measurement_has_one_run() -> None:
    """The newest: a figure that is measured again moves to the section of that run."""
    names = [name for run in table() for name in table()[run]["figures"]]
    assert len(names) == len(set(names))


def test_figures_are_found_in_tables_and_in_sentences() -> None:
    page = """Of [a run](results/2026-11-25-bench.md#tls), medians:

| row, linger 5 ms | Kafka | ours |
| --- | --- | --- |
| write, 1,000 ms | 2.5, 1,234 ms | 2.8 + 0.4 s/GB |

Not of a run: 7 ms.

A first one takes 1 ms ([one](../results/2026-11-20-a.md)). Another 2 ms, `3 ms` code ([b](../results/2026-11-20-b.md)).
"""
    assert list(quoted("p", page)) == [
        Quoted("p", 5, "2026-11-25-bench", "2.5 ms"),
        Quoted("p", 5, "2026-11-25-bench", "1,234 ms"),
        Quoted("p", 5, "2026-11-25-bench", "2.8 s/GB"),
        Quoted("p", 5, "2026-11-25-bench", "0.4 s/GB"),
        Quoted("p", 9, "2026-11-20-a", "1 ms"),
        Quoted("p", 9, "2026-11-20-b", "2 ms"),
    ]
