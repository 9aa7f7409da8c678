"""`make compat SUITE=codec`: random requests of every API and version, each answer read by Kafka's own classes.

Place: next to runner.py, which runs the libraries' own tests; the check itself is tests/compat/codec_check.py.
Invariant: the same seeds each time, so that a failure can be repeated.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.compat.codec_check import check, own_agent
from tests.compat.suites.runner import Outcome

NAME = "codec"
SEEDS = (1, 2, 3)
REQUESTS = 25
"""Requests for each seed and version."""


def run(work: Path) -> list[Outcome]:
    """An outcome per API key and seed; what the check printed goes to `work`/codec.log."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="headrace-codec-") as directory, (work / f"{NAME}.log").open("w") as log:
        Path(directory).chmod(0o711)  # started by root, Postgres runs as another user and must get through
        with own_agent(Path(directory)) as addresses:
            for seed in SEEDS:
                report = check(addresses, seed, REQUESTS)
                log.write(f"seed {seed}\n{report.output}")
                for key in report.keys:
                    verdict = "failed" if key.findings else "passed"
                    outcomes.append(
                        Outcome(f"seed {seed}::{key.key} {key.name}", verdict, key.line if key.findings else "")
                    )
                outcomes.extend(Outcome(f"seed {seed}::asked", "failed", each) for each in report.findings)
    return outcomes
