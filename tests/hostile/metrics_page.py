"""What an attacked agent says of its memory and its limits."""

from __future__ import annotations

import re
import urllib.request


def read_page(http: str) -> str:
    """The metrics of the agent at host:port."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=60) as response:
        page: bytes = response.read()
    return page.decode()


def memory_in_use(page: str) -> dict[str, float]:
    """headrace_memory_bytes by part."""
    rows = re.findall(r'^headrace_memory_bytes\{part="(\w+)"\} (\S+)$', page, re.MULTILINE)
    return {part: float(value) for part, value in rows}


def limits_reached(page: str) -> dict[str, int]:
    """headrace_limit_reached_total by limit."""
    rows = re.findall(r'^headrace_limit_reached_total\{limit="([\w.]+)"\} (\S+)$', page, re.MULTILINE)
    return {limit: int(float(value)) for limit, value in rows}
