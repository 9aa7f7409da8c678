"""franz-go and sarama: each a program of tests/tools/go-clients, which prints one JSON object.

A group's members are clients of one process. They start to read when each has partitions, and
commit when all was read.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.tools import GO_CLIENTS

TIMEOUT_SECONDS = 300
"""The program gives up before."""


@dataclass(frozen=True, slots=True)
class GoMember:
    """What one member had in the end, and what it read."""

    partitions: list[int]
    values: list[str]


def produce(tool: str, bootstrap: str, topic: str, count: int) -> None:
    """Return when all is acknowledged."""
    assert _run(tool, "produce", bootstrap, topic, str(count))["records"] == count


def consume(tool: str, bootstrap: str, topic: str, count: int) -> list[str]:
    """The values that the only member of a group reads."""
    group = f"{tool}-{topic}"
    (member,) = read_in_group(tool, bootstrap, topic, count, 0, group=group, protocol="classic", members=1)
    return member.values


def read_in_group(
    tool: str, bootstrap: str, topic: str, count: int, partitions: int, *, group: str, protocol: str, members: int
) -> list[GoMember]:
    """Return what so many members read, together `count` records, and committed. `partitions`: that they must have
    together; 0 asks for no certain number.
    """
    options = (str(partitions), group, protocol, str(members))
    found = _run(tool, "consume", bootstrap, topic, str(count), *options)["members"]
    return [GoMember(each["partitions"], each["values"] or []) for each in found]


def _run(tool: str, *arguments: str) -> dict[str, Any]:
    program = str(GO_CLIENTS[tool])
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
