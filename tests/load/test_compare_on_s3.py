"""The commands of the comparisons are ones that `headrace bench` takes."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.bench.rows import pick
from headrace.cli.bench.targets import parse_target
from load.benchmarks.compare_on_s3 import commands


def _after(arguments: list[str], flag: str) -> list[str]:
    return [arguments[at + 1] for at, argument in enumerate(arguments) if argument == flag]


def test_rows_and_targets_exist() -> None:
    found = commands(Path("/results"), "/jars", "/checkout", 8, 3)
    assert set(found) == {"equal-promises", "s3", "low-latency"}
    for arguments in found.values():
        assert pick(_after(arguments, "--rows")[0])
        for text in (*_after(arguments, "--target"), *_after(arguments, "--vs")):
            parse_target(text).options()
        assert _after(arguments, "--rounds") == ["3"]
    assert any("before=headrace:/checkout" in text for text in found["s3"])
