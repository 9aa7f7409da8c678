"""The bar is only shown on a terminal."""

from __future__ import annotations

import pytest

from headrace.cli.output import ProgressBar


@pytest.mark.parametrize(
    ("stderr", "stdout", "beside_output", "shown"),
    [
        (True, True, False, True),
        (True, False, True, True),
        (True, True, True, False),
        (False, False, False, False),
    ],
)
def test_who_sees_it(
    stderr: bool,
    stdout: bool,
    beside_output: bool,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: stderr)
    monkeypatch.setattr("sys.stdout.isatty", lambda: stdout)
    bar = ProgressBar(beside_output=beside_output)
    bar("records", 5, 10)
    bar("records", 10, 10)
    bar.close()
    drawn = capsys.readouterr()
    assert drawn.out == ""
    half, full = f"\r records [{'#' * 15:<30}] 5/10", f"\r records [{'#' * 30}] 10/10"
    assert drawn.err == (f"{half}{full}\n" if shown else "")
