"""Samples of an agent's memory: from the kernel, from /metrics, and from the probe inside it.

Invariant: a sample is a flat dictionary of numbers; all sizes are in bytes. A field that cannot be read is left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from load.agent_child import AgentChild

Sample = dict[str, float]

_PART = re.compile(r'^headrace_memory_bytes\{part="(\w+)"\} (\S+)$', re.MULTILINE)
_MERGED = re.compile(r'^headrace_compaction_output_files_total\{level="(\d)"\} (\S+)$', re.MULTILINE)
_MERGED_BYTES = re.compile(r'^headrace_compaction_written_bytes_total\{level="(\d)"\} (\S+)$', re.MULTILINE)
_ROLLUP = re.compile(r"^(Rss|Private_Clean|Private_Dirty|AnonHugePages):\s+(\d+) kB$", re.MULTILINE)
_ARENA_BYTES = re.compile(r"([\d,]+) arenas \* ([\d,]+) bytes/arena")
_USED = re.compile(r"# bytes in allocated blocks\s+=\s+([\d,]+)")
_TAIL_BYTES = 64 * 1024


def sample(agent: AgentChild, probed: Path, log: Path) -> Sample:
    """Read all of it now."""
    rollup = dict(_ROLLUP.findall(Path(f"/proc/{agent.pid}/smaps_rollup").read_text()))
    sizes = {name: int(kib) * 1024 for name, kib in rollup.items()}
    found: Sample = {
        "rss": sizes["Rss"],
        "uss": sizes["Private_Clean"] + sizes["Private_Dirty"],
        "huge": sizes.get("AnonHugePages", 0),
        "threads": len(list(Path(f"/proc/{agent.pid}/task").iterdir())),
        "cpu_seconds": agent.cpu_seconds(),
    }
    page = agent.metrics()
    found |= {f"part {part}": float(value) for part, value in _PART.findall(page)}
    found |= {f"merges {level}": float(value) for level, value in _MERGED.findall(page)}
    found |= {f"merged bytes {level}": float(value) for level, value in _MERGED_BYTES.findall(page)}
    lines = _tail(probed).splitlines()
    found |= json.loads(lines[-1]) if lines else {}
    return found | _small_objects(_tail(log))


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
        return file.read().decode(errors="replace")


def _small_objects(log: str) -> Sample:
    """Python's small-object arenas, and what is used of them, as sys._debugmallocstats said last."""
    found: Sample = {}
    for name, pattern in (("python_arenas", _ARENA_BYTES), ("python_used", _USED)):
        if matches := pattern.findall(log):
            last = matches[-1]
            numbers = [int(each.replace(",", "")) for each in (last if isinstance(last, tuple) else (last,))]
            found[name] = numbers[0] * (numbers[1] if len(numbers) > 1 else 1)
    return found
