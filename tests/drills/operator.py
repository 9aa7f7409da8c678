"""What an operator can see from outside: readiness, doctor's findings, metrics that moved, new warnings in the logs.

Place: used by tests/drills/run.py.
Invariant: it reads only, and only what a person on call has too.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from load.agent_child import flags
from tests.torture.agents import ProxiedAgent
from tests.torture.servers import CREDENTIALS

TELLING = re.compile(r"^headrace_\w*(fail|error|retr|timed_out|refused|fenced|duplicate|elect|hidden|not_ready)\w*$")
"""Metrics that do not change on a good day."""
_WARNING = re.compile(r"\b(WARNING|ERROR|CRITICAL) headrace\.(\S+) (.*)$")
LINES_MAX, TEXT_MAX = 6, 170
LEVELS = ("ok", "unknown", "warn", "bad")

Findings = dict[tuple[str, str], tuple[str, str]]
"""(area, check) -> (level, what was found)."""


async def readiness(agents: Mapping[str, ProxiedAgent]) -> list[str]:
    """One line for each agent that is not ready."""
    answers = await asyncio.gather(*(asyncio.to_thread(_ask, agent.ready_url) for agent in agents.values()))
    return [f"{name} {answer}" for name, answer in zip(agents, answers, strict=True) if answer]


def _ask(url: str) -> str:
    """Empty if it is ready."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            response.read()
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code} {' '.join(error.read().decode().split())}"[:TEXT_MAX]
    except OSError as error:
        return f"no answer: {getattr(error, 'reason', error)}"


async def doctor(
    settings: Mapping[str, object],
    module: Sequence[str] = ("headrace.cli.main",),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Findings:
    """`headrace doctor` with these settings: the worst line of each check. `module`: what runs it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *module, "doctor", "--json", *flags(settings),
        env=os.environ | CREDENTIALS | dict(environment), stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, errors = await process.communicate()
    if not printed:
        return {("doctor", "run"): ("bad", errors.decode().strip()[-TEXT_MAX:])}
    rows = sorted(json.loads(printed), key=lambda row: LEVELS.index(row["level"]))
    return {(row["area"], row["check"]): (row["level"], row["found"]) for row in rows}


def worse(before: Findings, now: Findings) -> list[str]:
    """The findings that were ok, or not there, before."""
    return [
        f"{level:<4} {area} {check}: {found[:TEXT_MAX]}"
        for (area, check), (level, found) in now.items()
        if level != "ok" and before.get((area, check), ("ok", ""))[0] != level
    ]


def moved(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Telling metrics, summed over the agents, by how much they rose."""
    return [
        f"{name} {after[name] - before.get(name, 0.0):+g}"
        for name in sorted(after)
        if TELLING.match(name) and after[name] > before.get(name, 0.0)
    ]


def warnings(text: str) -> list[str]:
    """Warnings and errors of a piece of the logs: the first of each kind, and how many there were."""
    kinds: Counter[str] = Counter()
    first: dict[str, str] = {}
    for line in text.splitlines():
        if match := _WARNING.search(line):
            level, logger, message = match.groups()
            kind = f"{logger} {re.split(r'[:=]|[0-9]', message)[0]}"
            kinds[kind] += 1
            first.setdefault(kind, f"{level} {logger} {message[:TEXT_MAX]}")
    lines = [f"{count:3} x {first[kind]}" for kind, count in kinds.most_common(LINES_MAX)]
    return [*lines, *([f"and {len(kinds) - LINES_MAX} other kinds"] if len(kinds) > LINES_MAX else [])]
